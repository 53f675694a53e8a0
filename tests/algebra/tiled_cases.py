"""Random arguments of the thread-value layer, as plain data: what both libraries are asked."""

from __future__ import annotations

from random import Random
from typing import Any

ATOMS = ("m16n8k16.f16", "m16n8k8.f16", "m16n8k8.tf32", "m1n1k1.fma")
SHAPES = {"m16n8k16.f16": (16, 8, 16), "m16n8k8.f16": (16, 8, 8), "m16n8k8.tf32": (16, 8, 8)}


def cases(seed: int, count: int) -> list[dict[str, Any]]:
    """``count`` cases, kinds in turn; each has its ``kind`` and the arguments of it."""
    random = Random(seed)
    makers = (of_mma, of_mma, of_copy, of_threads, of_data, of_layout_tv, of_tensor, of_fragment)
    return [makers[i % len(makers)](random) for i in range(count)]


def nested(entry: Any) -> Any:
    """Return an entry of JSON with tuples for lists."""
    return tuple(map(nested, entry)) if isinstance(entry, list) else entry


def ordered(random: Random, extents: list[int]) -> tuple[list[int], list[int]]:
    """A compact layout of these extents, the modes in any order of speed."""
    strides, current = [0] * len(extents), 1
    for i in random.sample(range(len(extents)), len(extents)):
        strides[i] = current
        current *= extents[i]
    return extents, strides


def of_mma(random: Random) -> dict[str, Any]:
    """A tiled mma, a thread of it, and copies that are made for it."""
    atom = random.choice(ATOMS)
    simt = atom == "m1n1k1.fma"
    counts = [random.choice((1, 2, 4, 8) if simt else (1, 2, 4)) for _ in range(2)]
    shape = SHAPES.get(atom, (1, 1, 1))
    permutation: list[Any] = [None, None, None]
    if not simt:
        for i in range(2):
            tile = shape[i] * counts[i]
            kind = random.randrange(4)
            if kind == 1:
                permutation[i] = tile * random.choice((1, 2))
            elif kind == 2:  # values of neighbouring atoms next to each other
                permutation[i] = [[shape[i], counts[i], 2], [1, 2 * shape[i], shape[i]]]
    tile_mn = [
        shape[i] * counts[i] * 2
        if isinstance(permutation[i], list)
        else permutation[i] or shape[i] * counts[i]
        for i in range(2)
    ]
    extents = [tile_mn[i] * random.choice((1, 2)) for i in range(2)]
    extents.append(shape[2] * random.choice((1, 2)))
    threads = (1 if simt else 32) * counts[0] * counts[1]
    return {
        "kind": "mma",
        "atom": atom,
        "atoms": ordered(random, [*counts, 1]),
        "permutation": permutation,
        "extents": extents,
        "thread": random.randrange(threads),
        "values": 1 if simt else random.choice((1, 2)),
    }


def of_copy(random: Random) -> dict[str, Any]:
    """ldmatrix for operands of a tiled mma."""
    counts = [random.choice((1, 2, 4)) for _ in range(2)]
    return {
        "kind": "ldmatrix",
        "atoms": ordered(random, [*counts, 1]),
        "transposed": random.random() < 0.5,
        "extents": [16 * counts[0] * 2, 8 * counts[1] * 2, 32],
        "thread": random.randrange(32 * counts[0] * counts[1]),
    }


def of_threads(random: Random) -> dict[str, Any]:
    """A tiled copy of threads side by side, each with a block of values."""
    threads = [random.choice((1, 2, 4, 8, 16)) for _ in range(2)]
    values = [random.choice((1, 2, 4, 8)) for _ in range(2)]
    value_layout = ordered(random, values)
    total = values[0] * values[1]
    return {
        "kind": "threads",
        "threads": ordered(random, threads),
        "values": value_layout,
        "vector": random.choice([v for v in (1, 2, 4, 8) if total % v == 0]),
        "extents": [threads[i] * values[i] * random.choice((1, 2, 3)) for i in range(2)],
        "thread": random.randrange(threads[0] * threads[1]),
    }


def of_data(random: Random) -> dict[str, Any]:
    """A copy whose threads and values are offsets of a compact matrix."""
    rows, columns = (random.choice((4, 8, 16, 32)) for _ in range(2))
    by_row = random.random() < 0.5
    values = random.choice((1, 2, 4))
    return {
        "kind": "data",
        "data": [[rows, columns], [columns, 1] if by_row else [1, rows]],
        "threads_values": [[rows * columns // (2 * values), values], [values, 1]],
        "thread": random.randrange(rows * columns // (2 * values)),
    }


def of_layout_tv(random: Random) -> dict[str, Any]:
    """Layouts of threads and of values over three modes or fewer."""
    rank = random.choice((1, 2, 3))
    sides = [ordered(random, [random.choice((1, 2, 3, 4)) for _ in range(rank)]) for _ in range(2)]
    return {"kind": "layout_tv", "threads": sides[0], "values": sides[1]}


def of_tensor(random: Random) -> dict[str, Any]:
    """Tiles and partitions of a tensor of coordinates."""
    tiles = [random.choice((2, 4, 3)) for _ in range(2)]
    rests = [random.choice((1, 2, 5)) for _ in range(2)]
    threads = ordered(random, tiles)
    crd = [None if random.random() < 0.4 else random.randrange(rests[i]) for i in range(2)]
    return {
        "kind": "tensor",
        "extents": [tiles[i] * rests[i] for i in range(2)],
        "tiles": tiles,
        "crd": crd,
        "threads": threads,
        "thread": random.randrange(tiles[0] * tiles[1]),
    }


def of_fragment(random: Random) -> dict[str, Any]:
    """A partition of which registers are made; all strides differ: CuTe shares equal ones."""
    strides = random.sample((1, 2, 3, 5, 8, 16, 64), 4)
    first = [
        [random.choice((1, 2, 4)), 2],
        [0 if random.random() < 0.3 else strides[0], strides[1]],
    ]
    rest = [random.choice((2, 3, 4)) for _ in range(2)]
    stride = [strides[2], 0 if random.random() < 0.2 else strides[3]]
    return {"kind": "fragment", "shape": [first[0], *rest], "stride": [first[1], *stride]}
