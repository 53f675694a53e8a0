"""Tiles as JSON, for tuned choices on disk, with a format version."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from functools import partial
from typing import Any

from .group_sums import GroupSumTile
from .group_tile import GroupTile
from .schedule import KernelSchedule, Load, TileScheduler
from .tile import TileConfig, persistent, specialized

FORMAT = 2
_NAMED: dict[str, type[Enum]] = {
    "schedule": KernelSchedule,
    "load": Load,
    "scheduler": TileScheduler,
}
_OF_GROUPS = ("groups", "columns", "box", "patch", "filter")
_OF_SEVERAL = {kind.__name__: kind for kind in (GroupTile, GroupSumTile)}
_POSITIVE = ("mma", "warps", "m", "n", "k", "warps_m", "warps_n")


def tile_to_json(tile: TileConfig) -> dict[str, Any]:
    """Return a tile as JSON of format ``FORMAT``: sizes, and the names of its choices.

    >>> from .tile import TileConfig
    >>> found = tile_to_json(TileConfig((64, 64, 32), stages=4))
    >>> found["mma"], found["stages"], found["schedule"]
    ([64, 64, 32], 4, 'MULTISTAGE')
    >>> tile_from_json(found, FORMAT)
    TileConfig((64, 64, 32), warps=(2, 2), stages=4)

    A tile of several groups adds its own fields.

    >>> from .group_tile import GroupTile
    >>> several = GroupTile((64, 32, 32), (2, 2), 1, groups=4, columns=32, box=(8, 8),
    ...     patch=(10, 10), filter=(32, 72))
    >>> tile_from_json(tile_to_json(several), FORMAT) == several
    True
    """
    return {
        "mma": list(tile.mma),
        "warps": list(tile.warps),
        "stages": tile.stages,
        **{name: getattr(tile, name).name for name in _NAMED},
        "halo_taps": tile.halo_taps,
        "cluster_k": tile.cluster_k,
        "b_resident": tile.b_resident,
        **(_lists(tile) if isinstance(tile, GroupTile) else {}),
    }


def tile_from_json(found: dict[str, Any], version: int) -> TileConfig:
    """Return the tile of a JSON object of a format; format 1, without names, is migrated.

    Raises ``ValueError``, ``KeyError`` or ``TypeError`` for what is not, or no longer, a tile: an
    unknown format, for instance, or TMA multicast, which format 1 had.
    """
    if not isinstance(found, dict):
        raise TypeError(f"expected an object of JSON, got {found!r}")
    _check_numbers(found)
    if version == 1:
        return _of_format_1(**found)
    if version != FORMAT:
        raise ValueError(f"expected a tile of format 1 or {FORMAT}, got format {version}")
    m, n, k = map(int, found["mma"])
    warps_m, warps_n = map(int, found["warps"])
    make: Callable[..., TileConfig] = TileConfig
    if "groups" in found:
        make = partial(_OF_SEVERAL[found["kind"]], **_of_groups(found))
    return make(
        (m, n, k),
        (warps_m, warps_n),
        int(found["stages"]),
        KernelSchedule[found["schedule"]],
        Load[found["load"]],
        TileScheduler[found["scheduler"]],
        int(found["halo_taps"]),
        int(found["cluster_k"]),
        int(found["b_resident"]),
    )


def _lists(tile: GroupTile) -> dict[str, Any]:
    """Return the additional fields of a tile of several groups."""
    values = {name: getattr(tile, name) for name in _OF_GROUPS}
    lists = {name: list(v) if isinstance(v, tuple) else v for name, v in values.items()}
    return {"kind": type(tile).__name__, **lists}


def _of_groups(found: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments that ``_lists`` wrote."""
    values = {name: found[name] for name in _OF_GROUPS}
    return {name: tuple(v) if isinstance(v, list) else v for name, v in values.items()}


def _check_numbers(found: dict[str, Any]) -> None:
    """Raise ``ValueError`` unless all numbers are non-negative integers, and sizes positive."""
    for name, value in found.items():
        for number in value if isinstance(value, list) else [value]:
            if isinstance(number, str | bool):
                continue
            if type(number) is not int or number < (name in _POSITIVE):
                raise ValueError(f"expected whole numbers for {name}, got {value!r}")


def _of_format_1(
    m: int, n: int, k: int, warps_m: int, warps_n: int, stages: int, producers: int = 0, **rest: Any
) -> TileConfig:
    """Return a tile from format 1, which has counts of threads, taps and CTAs instead of names."""
    mma, warps = (m, n, k), (warps_m, warps_n)
    halo_taps, cluster_k = rest.pop("taps", 1), rest.pop("parts", 1)
    b_resident, consumers = rest.pop("holding", 0), rest.pop("teams", 1)
    loops, multicast = rest.pop("lasting", False), rest.pop("sharing", 1)
    if rest or multicast != 1:
        raise ValueError(f"expected a tile without TMA multicast, got {multicast} CTAs, {rest}")
    load = next((load for load in Load if load.producer_threads == producers), None)
    if load is None or (loops and (load is not Load.TMA_WARP or cluster_k != 1)):
        raise ValueError(f"expected a tile that some kernel has, got {producers} producers")
    if loops:
        return persistent(
            mma, warps, stages, pingpong=consumers == 2, halo_taps=halo_taps, b_resident=b_resident
        )
    if b_resident or consumers != 1:
        raise ValueError("expected a persistent kernel for a resident B or two consumers")
    if load is Load.CP_ASYNC:
        return TileConfig(mma, warps, stages, halo_taps=halo_taps, cluster_k=cluster_k)
    return specialized(mma, warps, stages, load, halo_taps=halo_taps, cluster_k=cluster_k)
