"""Loads and stores by state space: resolve the memory of an address, and the accessing lane."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from .faults import OutOfBounds
from .layout import CLUSTER_BITS, GENERIC_WINDOW
from .masks import every, some
from .memory import Addresses, Numbers, check_alignment, first_of, word_dtype
from .team import Team

if TYPE_CHECKING:
    from .cta import CTA

SPACES = (
    *("global", "shared", "shared::cta", "shared::cluster"),
    *("local", "param", "param::entry", "const"),
)
_WINDOW_BITS = 56


def space_of(name: str) -> str:
    """Return the space without its qualifier; an empty name means generic addresses."""
    return name.split("::")[0]


def load(team: Team, space: str, addresses: Addresses, width: int, lanes: Numbers) -> NDArray:
    """Load one word of ``width`` bytes per address; ``lanes`` are the accessing lanes."""
    match space:
        case "global" | "const":
            return team.cta.memory.load(addresses, width, lanes)
        case "shared":
            if not some(addresses >> CLUSTER_BITS):
                return team.cta.shared.load_by(addresses, width, lanes, team.warp_of[lanes])
            words = np.zeros(addresses.shape, word_dtype(width))
            for cta, near, chosen in _by_cta(team, addresses, lanes):
                by = lanes[chosen]
                words[chosen] = cta.shared.load_by(near, width, by, team.warp_of[by])
            return words
        case "local":
            return team.local.load(_local(team, addresses, width, lanes), width, lanes)
        case "param":
            return _load_param(team, addresses, width, lanes)
    out = np.zeros(addresses.shape, word_dtype(width))
    for part, offset, chosen in _generic(addresses):
        out[chosen] = load(team, part, addresses[chosen] - offset, width, lanes[chosen])
    return out


def store(
    team: Team,
    space: str,
    addresses: Addresses,
    words: NDArray,
    lanes: Numbers,
    *,
    atomic: bool = False,
) -> None:
    """Write one word to every address."""
    match space:
        case "global":
            writers = None if atomic else team.grid_threads[lanes]
            team.cta.memory.store(addresses, words, lanes, writers)
        case "shared":
            for cta, near, chosen in _by_cta(team, addresses, lanes):
                by = lanes[chosen]
                cta.shared.store_by(near, words[chosen], by, team.warp_of[by])
        case "local":
            width = words.dtype.itemsize
            team.local.store(_local(team, addresses, width, lanes), words, lanes)
        case "":
            for part, offset, chosen in _generic(addresses):
                near = addresses[chosen] - offset
                store(team, part, near, words[chosen], lanes[chosen], atomic=atomic)
        case _:
            raise OutOfBounds(f"{space} memory cannot be written", int(lanes[0]), int(addresses[0]))


def _by_cta(
    team: Team, addresses: Addresses, lanes: Numbers
) -> Iterator[tuple[CTA, NDArray[np.int64], slice | NDArray[np.bool_]]]:
    """Yield the CTAs whose shared memory is addressed: CTA, addresses in it, their mask."""
    ranks = addresses >> CLUSTER_BITS
    if not some(ranks):
        yield team.cta, addresses, slice(None)
        return
    for rank in np.unique(ranks).tolist():
        chosen = ranks == rank
        first = int(chosen.argmax())
        cta, _ = team.cta.cluster.locate(team.cta, int(addresses[first]), int(lanes[first]))
        yield cta, addresses[chosen] & (1 << CLUSTER_BITS) - 1, chosen


def _generic(addresses: Addresses) -> list[tuple[str, int, NDArray[np.bool_]]]:
    """Return the spaces of generic addresses: name, window offset, mask of the addresses."""
    windows = addresses >> _WINDOW_BITS
    parts = []
    for space, base in (("global", 0), *GENERIC_WINDOW.items()):
        chosen = windows == base >> _WINDOW_BITS
        if some(chosen):
            parts.append((space, base, chosen))
    return parts


def _local(team: Team, addresses: Addresses, width: int, lanes: Numbers) -> NDArray[np.int64]:
    """Map each thread's local addresses into the team's single array of local memory."""
    launch = team.cta.launch
    inside = (addresses >= launch.local_base) & (
        addresses + width <= launch.local_base + launch.local_size
    )
    if not every(inside):
        raise OutOfBounds("local access out of bounds", *first_of(~inside, lanes, addresses))
    return addresses + lanes * launch.local_size


def _load_param(team: Team, addresses: Addresses, width: int, lanes: Numbers) -> NDArray:
    check_alignment(addresses, width, lanes)
    block = team.cta.launch.arguments
    outside = (addresses < 0) | (addresses + width > len(block))
    if some(outside):
        said = "parameter access out of bounds"
        raise OutOfBounds(said, *first_of(outside, lanes, addresses))
    raw = np.frombuffer(block, np.uint8)
    return raw[addresses[:, None] + np.arange(width)].view(word_dtype(width)).reshape(-1)
