"""The timeline of a CTA as text: a line for each role, and a table of k-tiles."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ..planning.tile import TileConfig
    from ..planning.timeline import KTile, Timeline

WIDTH = 64  # characters of a line
_MOST_ROWS = 12  # of the table: the first ones and the last


def as_facts(found: Timeline, tile: TileConfig) -> dict[str, Any]:
    """Return the timeline for ``--json``, in microseconds from the start of the CTA."""
    return {
        "how": "estimated from the cost model's rates; nothing was run or simulated",
        "producer": _producer(tile),
        "bound": found.bound,
        "k_tiles_of_a_sum": found.whole,
        "output_tiles": found.output_tiles,
        "ctas_together": found.together,
        "multiply_us": round(found.multiply, 3),
        "copy_us": round(found.copy, 3),
        "prologue_us": round(found.prologue, 3),
        "waited_us": round(found.waited, 3),
        "end_us": round(found.end, 3),
        "k_tiles": [
            {
                "output_tile": one.output_tile, "k_tile": one.k_tile, "load": round(one.load, 3),
                "landed": round(one.landed, 3), "multiply": round(one.begin, 3),
                "done": round(one.end, 3), "waited": round(one.waited, 3),
            }
            for one in some(found.k_tiles)
        ],
        "epilogues": [[round(begin, 3), round(end, 3)] for begin, end in found.epilogues],
    }  # fmt: skip


def some(k_tiles: Sequence[KTile]) -> list[KTile]:
    """Return all k-tiles; if there are many, the first and the last ones."""
    if len(k_tiles) <= _MOST_ROWS:
        return list(k_tiles)
    return [*k_tiles[: _MOST_ROWS - 2], *k_tiles[-2:]]


def _producer(tile: TileConfig) -> str:
    return str(tile.load) if tile.warp_specialized else "cp.async by all warps"


def lanes(found: Timeline, tile: TileConfig, width: int = WIDTH) -> list[tuple[str, str]]:
    """Return a line for each role, all on one time scale.

    >>> from layoutconv.planning.cost_model import Problem
    >>> from layoutconv.planning.machine import MACHINES
    >>> from layoutconv.planning.tile import TileConfig
    >>> from layoutconv.planning.timeline import timeline
    >>> tile, problem = TileConfig((128, 128, 64)), Problem(10**6, 128, 512, 64, "float16", 2)
    >>> found = timeline(problem, tile, 1, MACHINES["sm_80"])
    >>> for role, line in lanes(found, tile, 40):
    ...     print(f"{role:12} {line}")
    loads        ...LLLL...LLLLLLL.LLLLLLLLLLLLLLL.......
    products     ......MMMMMMMMMMMMMMMMMMMMMMMMMMMMMMM...
    epilogue     .....................................EEE
    """
    scale = width / found.end

    def line(spans: Sequence[tuple[float, float]], letter: str) -> str:
        cells = ["."] * width
        for begin, end in spans:
            last = max(int(begin * scale) + 1, round(end * scale))
            for at in range(int(begin * scale), min(last, width)):
                cells[at] = letter
        return "".join(cells)

    loads = [(one.load, one.landed) for one in found.k_tiles]
    consumers = tile.consumers
    lines = [("producer" if tile.warp_specialized else "loads", line(loads, "L"))]
    for consumer in range(consumers):
        mine = [one for one in found.k_tiles if one.output_tile % consumers == consumer]
        products = [(one.begin, one.end) for one in mine]
        name = "consumers" if tile.warp_specialized else "products"
        lines.append((f"consumer {consumer}" if consumers > 1 else name, line(products, "M")))
    stores = list(found.epilogues)
    for consumer in range(consumers):
        name = f"epilogue {consumer}" if consumers > 1 else "epilogue"
        lines.append((name, line(stores[consumer::consumers], "E")))
    return lines


def sentences(found: Timeline) -> list[str]:
    """Return sentences that explain the lines and sum them up."""
    tiles = ""
    if found.output_tiles > len(found.epilogues):
        tiles = f", the first {len(found.epilogues)} of its {found.output_tiles} output tiles"
    elif found.output_tiles > 1:
        tiles = f", its {found.output_tiles} output tiles"
    beside = f", {found.together} of them on an SM" if found.together > 1 else ""
    wait = (
        f"consumers wait {found.waited:.1f} us for loads"
        if found.waited > 0.05
        else "loads stay ahead of the products"
    )
    return [
        f"timeline of a CTA{beside}{tiles}: {found.end:.1f} us, estimated from the cost model's "
        "rates; nothing was run",
        f"a sum has {found.whole} k-tiles, each {found.multiply:.2f} us of products, its bytes "
        f"{found.copy:.2f} us after the last: bound by {found.bound}, {wait}",
    ]
