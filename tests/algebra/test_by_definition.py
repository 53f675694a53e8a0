"""Operations by mode, on every operand, by what they do to coordinates.

An operation on the domain of a function gives the function of what it makes of the coordinates:
``op(f)(c) == f(op(identity)(c))``. Positions beyond the domain, of a last tile, are predicated.
"""

from __future__ import annotations

import random

import pytest

import layoutconv.algebra as lc
from layoutconv.algebra import F2, ComposedLayout, Layout, LayoutError, Swizzle, Tensor
from layoutconv.testing.random_layouts import STRIDE_KINDS, Unbounded, of_kind, over

KINDS = ["layout", "swizzled", "offset", "tensor"]
OPERATIONS = ["composition", "logical_divide", "zipped_divide", "tiled_divide", "flat_divide"]


def drawn_shape(rng):
    extents = [rng.choice([1, 2, 3, 4, 6]) for _ in range(4)]
    return ((extents[0], extents[1]), extents[2], (extents[3], 2))[: rng.randint(1, 3)]


def drawn_tiler(rng, shape):
    """An entry for each of the first modes: None, an extent, a layout, a tuple for a nested one."""
    entries = []
    for mode in shape[: rng.randint(1, len(shape))]:
        size = lc.size(mode)
        entry = rng.choice(
            [None, rng.randint(1, size), Layout(rng.randint(1, 3), rng.randint(1, 2))]
        )
        if isinstance(mode, tuple) and rng.random() < 0.5:
            entry = tuple([rng.choice([None, rng.randint(1, s)]) for s in mode])
        entries.append(entry)
    return tuple(entries)


def drawn(rng, kind, strides, shape):
    if kind == "tensor" and rng.random() < 0.5:
        swizzled = ComposedLayout(Swizzle(2, 1, 3), rng.choice([0, 5, 8]), Layout(shape))
        return Tensor(Unbounded(), swizzled, rng.choice([0, 7]))
    return over(rng, kind, of_kind(rng, strides, shape=shape))


def whole(crd, shape):
    """A coordinate with zeros where it has no entry, of the profile of a shape."""
    if not isinstance(shape, tuple):
        return crd if isinstance(crd, int) else 0
    given = tuple(crd) if isinstance(crd, tuple) else ()
    given += (0,) * (len(shape) - len(given))
    return tuple([whole(c, s) for c, s in zip(given, shape, strict=True)])


@pytest.mark.parametrize("name", OPERATIONS)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("strides", STRIDE_KINDS)
def test_an_operation_by_mode_is_one_on_coordinates(name, kind, strides):
    if (kind, strides) == ("swizzled", "basis"):
        return
    rng, operation, checked = random.Random(f"{name} {kind} {strides}"), getattr(lc, name), 0
    for _ in range(30):
        shape = drawn_shape(rng)
        f, tiler = drawn(rng, kind, strides, shape), drawn_tiler(rng, shape)
        try:
            result, places = operation(f, tiler), operation(lc.make_identity_layout(shape), tiler)
        except LayoutError:
            continue
        assert list(map(lc.size, result.shape)) == list(map(lc.size, places.shape))
        for crd in rng.sample(list(lc.coordinates(places.shape)), min(8, lc.size(places))):
            place = places(crd)
            place = whole(place.as_tuple() if hasattr(place, "as_tuple") else place, shape)
            if lc.elem_less(place, shape):
                by_mode = tuple(map(lc.crd2idx, crd, places.shape))
                assert result(by_mode) == f(place), (f, tiler, result, crd)
                checked += 1
    assert checked > 40


@pytest.mark.parametrize("element_bits", [4, 8, 16, 32, 64])
@pytest.mark.parametrize("swizzle", ["INTER", "SW32", "SW64", "SW128"])
def test_a_swizzled_row_of_shared_memory_exchanges_chunks_of_16_bytes(swizzle, element_bits):
    """Chunk i of 128-byte line l is at i ^ l, in as many bits as the swizzle exchanges."""
    bits = ["INTER", "SW32", "SW64", "SW128"].index(swizzle)
    for major in ("K", "MN"):
        atom = lc.smem_atom(f"{major}_{swizzle}", element_bits)
        run = (128 << bits) // element_bits
        for row in range(8):
            for i in range(run):
                line, byte = divmod((row * run + i) * element_bits // 8, 128)
                moved = line * 128 + (byte ^ (line % (1 << bits)) << 4)
                crd = (row, i) if major == "K" else (i, row)
                assert atom(crd) * element_bits // 8 == moved


@pytest.mark.parametrize("bits", [(16, 4), (8, 1), (32, 6), (8, 2), (4, 1), (6, 2)])
def test_elements_of_fewer_bits_lie_in_the_bits_of_the_wider_ones(bits):
    """A recast moves no bit: also after a swizzle, an offset and by XOR strides."""
    old, new = bits
    rng = random.Random(old)
    for _ in range(20):
        layout = lc.make_ordered_layout((4, (2, 4)), tuple(rng.sample(range(2), 2)))
        xor = Layout(layout.shape, lc.transform_leaf(F2, layout.stride))
        swizzled = ComposedLayout(Swizzle(2, rng.randint(0, 2), 3), rng.choice([0, 16]), layout)
        for f in (layout, xor, swizzled, ComposedLayout(Layout(64), 8, layout)):
            try:
                narrow = lc.recast(f, old, new)
            except LayoutError:
                continue
            covered = {new * int(narrow(i)) + b for i in range(lc.size(narrow)) for b in range(new)}
            assert covered == {old * int(f(i)) + b for i in range(lc.size(f)) for b in range(old)}
            assert lc.size(narrow) * new == lc.size(f) * old


def test_a_layout_without_elements_has_no_offsets():
    Z = lc.SymInt(0, "Z", runtime=True)
    for layout in (Layout((Z, 4)), Layout((4, Z), (Z, 1)), Layout(Z)):
        assert (lc.image(layout), lc.offset_table(layout), lc.cycles(layout)) == ([], {}, [])
        assert lc.is_bijective(layout)
        assert lc.is_injective(layout)
        assert lc.is_surjective(layout)
        assert lc.is_surjective(layout, 0)
        assert not lc.is_surjective(layout, 1)
        assert lc.is_contiguous(layout)
        assert lc.size(layout) == lc.contiguity(layout) == 0
    with pytest.raises(LayoutError, match="without coordinates"):
        lc.right_inverse(Layout((4, Z), (F2(1), F2(4))))
