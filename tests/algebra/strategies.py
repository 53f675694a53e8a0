"""Random layouts: shapes and strides as small as those in which libraries go wrong."""

from __future__ import annotations

import random

from hypothesis import strategies as st

from layoutconv.algebra import E, Layout

EXTENTS = [1, 2, 3, 4, 5, 6, 8]
STRIDES = [*range(10), 12, 16]


def random_layout(rng, max_rank, strides=STRIDES, *, nested=False, basis=False):
    """A layout of rank <= ``max_rank`` with these strides, an integer shape for rank 0 and 1."""
    rank = rng.randint(1, max_rank)
    shape = [rng.choice(EXTENTS) for _ in range(rank)]
    stride = [rng.choice(strides) for _ in range(rank)]
    if basis:
        stride = [d * E(rng.randrange(2)) if d else 0 for d in stride]
    if rank == 1 and rng.random() < 0.5:
        return Layout(shape[0], stride[0])
    if nested and rank > 2 and rng.random() < 0.7:
        cut = rng.randint(0, rank - 2)
        shape[cut : cut + 2] = [tuple(shape[cut : cut + 2])]
        stride[cut : cut + 2] = [tuple(stride[cut : cut + 2])]
    return Layout(tuple(shape), tuple(stride))


@st.composite
def layouts(draw, max_rank=3, strides=(*STRIDES, -1, -3), nested=True, basis=False, max_size=64):
    """A layout of at most ``max_size`` elements."""
    rng = random.Random(draw(st.integers(0, 2**32)))
    while True:
        layout = random_layout(rng, max_rank, list(strides), nested=nested, basis=basis)
        if layout.size() <= max_size:
            return layout
