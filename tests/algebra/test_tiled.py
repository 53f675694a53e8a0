"""Tiled copies and mmas: traced in the CuTe DSL, and by the laws that partitions obey."""

from __future__ import annotations

import pickle
import re

import pytest

import layoutconv.algebra as lc
from layoutconv.algebra import Layout

# Atoms over (M, N, K) and a permutation of the tile; thread 37 is asked.
ARRANGEMENTS = [
    ((1, 1, 1), None),
    ((2, 2, 1), None),
    ((1, 4, 1), None),
    ((2, 1, 2), None),
    ((2, 2, 1), (32, 32, 16)),
    ((4, 1, 1), (64, Layout((8, 2, 2), (1, 16, 8)), 16)),
]
EXTENTS = {"A": (128, 64), "B": (64, 64), "C": (128, 64)}
COPIES = {"A": lc.make_tiled_copy_A, "B": lc.make_tiled_copy_B, "C": lc.make_tiled_copy_C}


def arranged(atoms, permutation):
    return lc.make_tiled_mma(lc.mma_atom("m16n8k16.f16"), atoms, permutation or (None,) * 3)


def elements(tensor):
    """The coordinates that a tensor of coordinates has, in order."""
    return [tensor(i) for i in range(lc.size(tensor))]


@pytest.mark.parametrize(("atoms", "permutation"), ARRANGEMENTS, ids=str)
@pytest.mark.parametrize("operand", "ABC")
def test_threads_share_an_operand_out(atoms, permutation, operand):
    mma = arranged(atoms, permutation)
    i, j = {"A": (0, 2), "B": (1, 2), "C": (0, 1)}[operand]
    tile = (mma.get_tile_size(i), mma.get_tile_size(j))
    whole = lc.make_identity_tensor(tile)
    layout = mma.layout_tv(operand)
    held: dict[tuple[int, ...], set[int]] = {}
    for thread in range(mma.size):
        part = mma.get_slice(thread).partition(operand, whole)
        assert part.shape == mma.partition_shape(operand, tile)
        assert elements(part) == [whole(layout(thread, v)) for v in range(lc.size(part))]
        for crd in elements(part):
            held.setdefault(crd, set()).add(thread)
    assert set(held) == set(lc.coordinates(tile))
    others = {"A": 1, "B": 0, "C": 2}[operand]  # atoms along the mode that it does not have
    assert {len(threads) for threads in held.values()} == {atoms[others]}


@pytest.mark.parametrize(("atoms", "permutation"), ARRANGEMENTS, ids=str)
@pytest.mark.parametrize("operand", "ABC")
def test_a_retiled_fragment_is_what_the_copy_writes(atoms, permutation, operand):
    mma = arranged(atoms, permutation)
    whole = lc.make_identity_tensor(EXTENTS[operand])
    for unit in (lc.universal_copy(1), lc.universal_copy(2)):
        copy = COPIES[operand](unit, mma)
        for thread in (0, 5, mma.size - 1):
            fragment = mma.get_slice(thread).partition(operand, whole)
            written = copy.get_slice(thread).partition_D(whole)
            retiled = copy.retile(fragment)
            assert lc.size(retiled.shape[0]) == lc.size(written.shape[0])
            assert elements(retiled) == elements(written)


@pytest.mark.parametrize("values", [1, 8])
def test_a_copy_moves_every_element_once(values):
    threads = Layout((16, 8), (8, 1))
    copy = lc.make_tiled_copy_tv(lc.universal_copy(values), threads, (1, 8))
    whole = lc.make_identity_tensor((32, 128))
    for side in ("partition_S", "partition_D"):
        parts = [getattr(copy.get_slice(t), side)(whole) for t in range(copy.size)]
        assert sorted(c for part in parts for c in elements(part)) == sorted(
            lc.coordinates((32, 128))
        )
    assert lc.make_tiled_copy_D(lc.universal_copy(1), copy).size == copy.size


def test_ldmatrix_reads_rows_and_writes_fragments():
    """The rows that its threads point at, and the fragments that they get, are the same tile."""
    mma = arranged((2, 2, 1), None)
    copy = lc.make_tiled_copy_A(lc.copy_unit(lc.copy_atom("ldmatrix.x4")), mma)
    whole = lc.make_identity_tensor((32, 16))
    for warp in range(4):
        lanes = range(32 * warp, 32 * warp + 32)
        read = [elements(copy.get_slice(t).partition_S(whole)) for t in lanes]
        got = [elements(copy.get_slice(t).partition_D(whole)) for t in lanes]
        assert {c for row in read for c in row} == {c for held in got for c in held}
        assert sum(map(len, read)) == sum(map(len, got)) == 256
        for row in read:  # 16 bytes of one row
            assert {m for m, _ in row} == {row[0][0]}
            assert [k for _, k in row] == list(range(row[0][1], row[0][1] + 8))
        matrices = [read[8 * i : 8 * i + 8] for i in range(4)]
        for lane, held in enumerate(got):  # PTX: of each matrix two of row lane / 4
            expected = [
                matrix[lane // 4][2 * (lane % 4) + v] for matrix in matrices for v in range(2)
            ]
            assert held == expected


def test_what_does_not_fit_is_refused():
    mma = arranged((2, 2, 1), None)
    with pytest.raises(lc.LayoutError, match="128 is not one of its 128 threads"):
        mma.get_slice(128)
    with pytest.raises(lc.LayoutError, match="the operand A, B or C, got 'D'"):
        mma.layout_tv("D")
    with pytest.raises(lc.LayoutError, match="does not divide"):
        lc.make_tiled_copy(lc.universal_copy(8), Layout((32, 4)), (128,))
    with pytest.raises(lc.LayoutError, match="expected modes M, N, K"):
        lc.make_tiled_mma(lc.mma_atom("m16n8k16.f16"), (1, 1, 1, 1))


# ---- the CuTe DSL ------------------------------------------------------------------------------


def traced():
    """Return what the DSL says of all arrangements, as text without blanks."""
    cutlass = pytest.importorskip("cutlass")
    import cutlass.cute as cute
    from cutlass.cute.nvgpu import warp

    said = []

    def tiler(t):
        return t if isinstance(t, int) else cute.make_layout(t.shape, stride=t.stride)

    @cute.jit
    def trace():
        op = warp.MmaF16BF16Op(cutlass.Float16, cutlass.Float32, (16, 8, 16))
        for atoms, permutation in ARRANGEMENTS:
            options = (
                {"permutation_mnk": tuple(map(tiler, permutation))}
                if cutlass.const_expr(permutation is not None)
                else {}
            )
            mma = cute.make_tiled_mma(op, cute.make_layout(atoms), **options)
            said.append([mma.thr_layout_vmnk, mma.tv_layout_A_tiled, mma.tv_layout_B_tiled])
            slice_ = mma.get_slice(5)
            for operand in "ABC":
                whole = cute.make_identity_tensor(EXTENTS[operand])
                said[-1].append(getattr(slice_, f"partition_{operand}")(whole))
                loads = warp.LdMatrix8x8x16bOp(False, 4 if operand == "A" else 2)
                atom = cute.make_copy_atom(loads, cutlass.Float16)
                if cutlass.const_expr(operand == "C"):
                    both = cute.nvgpu.CopyUniversalOp()
                    atom = cute.make_copy_atom(both, cutlass.Float16, num_bits_per_copy=32)
                copy = getattr(cute, f"make_tiled_copy_{operand}")(atom, mma)
                said[-1] += [copy.get_slice(5).partition_S(whole)]
                said[-1] += [copy.get_slice(5).partition_D(whole)]
            said[-1] = [re.sub(r"\s", "", str(x)) for x in said[-1]]

    try:
        cute.compile(trace)
    except Exception as error:  # no compiler for the host, or no arch: the laws above hold
        if not said or len(said) < len(ARRANGEMENTS):
            pytest.skip(f"the CuTe DSL does not trace here: {error}")
    return said


def written(tensor):
    offset = ",".join(map(str, tuple(tensor.offset) if isinstance(tensor.offset, tuple) else ()))
    return f"tensor<({offset or '0,0'})o{tensor.layout}>"


def test_the_cute_dsl_says_the_same(monkeypatch):
    monkeypatch.setenv("CUTE_DSL_ARCH", "sm_90a")
    for (atoms, permutation), said in zip(ARRANGEMENTS, traced(), strict=True):
        mma = arranged(atoms, permutation)
        ours = [str(mma.thr_layout_vmnk), str(mma.layout_tv("A")), str(mma.layout_tv("B"))]
        for operand in "ABC":
            whole = lc.make_identity_tensor(EXTENTS[operand])
            ours.append(written(mma.get_slice(5).partition(operand, whole)))
            name = "ldmatrix.x4" if operand == "A" else "ldmatrix.x2"
            unit = lc.copy_unit(lc.copy_atom(name)) if operand != "C" else lc.universal_copy(2)
            thread = COPIES[operand](unit, mma).get_slice(5)
            ours += [written(thread.partition_S(whole)), written(thread.partition_D(whole))]
        assert ours == said


@pytest.mark.parametrize(
    "make",
    [
        lambda: lc.make_tiled_copy(lc.universal_copy(), Layout(32), (8, 8)),
        lambda: lc.make_tiled_copy(lc.universal_copy(), Layout((lc.symbols("N"), 4)), (8, 8)),
        lambda: lc.make_tiled_copy_tv(lc.universal_copy(), lc.symbols("N"), 4),
        lambda: lc.make_cotiled_copy(lc.universal_copy(), 64, 64),
        lambda: lc.make_tiled_mma(lc.mma_atom("m16n8k16.f16"), (lc.symbols("N"), 1, 1)),
        lambda: lc.make_tiled_mma(lc.mma_atom("m16n8k16.f16"), (1, 1, 1), 3),
        lambda: lc.make_layout_tv(Layout((4, lc.symbols("N"))), Layout(12, lc.F2(3))),
    ],
)
def test_what_no_threads_can_have_is_an_error_of_layouts(make):
    with pytest.raises(lc.LayoutError):
        make()


def test_data_of_one_mode_are_copied():
    copy = lc.make_cotiled_copy(lc.universal_copy(), Layout((4, 8), (8, 1)), Layout(32))
    for thread in range(4):
        part = copy.get_slice(thread).partition_S(lc.make_identity_tensor((32,)))
        assert [crd[0] for crd in elements(part)] == [8 * thread + v for v in range(8)]


def test_an_atom_in_bits_is_refused_by_name():
    atom, tv = lc.copy_atom("cp.async.16"), Layout((32, 8), (8, 1))
    for make in (lc.make_tiled_copy, lc.make_cotiled_copy):
        with pytest.raises(lc.LayoutTypeError, match=r"expected a CopyUnit, .*, got CopyAtom"):
            make(atom, tv, (16, 16))


@pytest.mark.parametrize("rows", [1, 2, 4])
def test_coordinates_have_an_entry_for_each_mode_that_nobody_moves_in(rows):
    whole = lc.make_identity_tensor((8, 1))
    copy = lc.make_tiled_copy_tv(lc.universal_copy(1), Layout((rows, 1)), Layout((1, 1)))
    for thread in range(rows):
        part = copy.get_slice(thread).partition_S(whole)
        assert elements(part) == [(m, 0) for m in range(thread, 8, rows)]
    alone = lc.make_identity_tensor((1, (1, 4)))[None, (0, 2)]
    assert elements(alone) == [(0, (0, 2))]
    assert lc.make_identity_tensor((8, 1)) == whole != lc.make_identity_tensor((8, (1, 1)))
    assert hash(lc.make_identity_tensor((8, 1))) == hash(whole)
    assert copy_of(whole) == whole


def copy_of(tensor):
    return pickle.loads(pickle.dumps(tensor))


@pytest.mark.parametrize("operand", ["A", "B", "C"])
def test_a_thread_has_the_elements_of_a_swizzled_tensor_that_its_layout_says(operand):
    swizzled = lc.composition(lc.Swizzle(3, 3, 3), Layout((64, 64), (64, 1)))
    elements = [7 * i % 4096 for i in range(4096)]
    thread = lc.make_tiled_mma(lc.mma_atom("m16n8k16.f16"), (2, 2, 1)).get_slice(5)
    offsets = thread.partition(operand, swizzled)
    part = thread.partition(operand, lc.make_tensor(elements, swizzled))
    assert part.shape == offsets.shape
    count = offsets.size()
    assert [part[i] for i in range(count)] == [elements[offsets(i)] for i in range(count)]


def test_a_thread_may_be_a_number_of_numpy():
    numpy = pytest.importorskip("numpy")
    mma = lc.make_tiled_mma(lc.mma_atom("m16n8k16.f16"), (2, 2, 1))
    tile = lc.make_identity_tensor((32, 16))
    copy = lc.make_tiled_copy_tv(lc.universal_copy(1), Layout((16, 8), (8, 1)), Layout((1, 8)))
    for tiled, partition in ((mma, "partition_A"), (copy, "partition_S")):
        parts = [getattr(tiled.get_slice(t), partition)(tile) for t in (5, numpy.uint8(5))]
        assert str(parts[0]) == str(parts[1])


@pytest.mark.parametrize("atoms", [(1, 1, 1), (1, 2, 1), (2, 2, 1)])
@pytest.mark.parametrize("operand", "ABC")
def test_threads_of_quad_pairs_are_those_that_the_atom_names(atoms, operand):
    """Thread 4 is of the next pair, thread 16 of the first: a slice of each covers the operand."""
    mma = lc.make_tiled_mma(lc.mma_atom("m8n8k4.f16"), atoms)
    threads = set(lc.image(mma.thr_layout_vmnk))
    i, j = {"A": (0, 2), "B": (1, 2), "C": (0, 1)}[operand]
    tile = lc.make_identity_tensor((2 * mma.get_tile_size(i), mma.get_tile_size(j)))
    held = [crd for t in threads for crd in elements(mma.get_slice(t).partition(operand, tile))]
    assert set(held) == set(lc.coordinates(tile))
    assert len(held) % len(set(held)) == 0
    for other in set(range(-1, 33)) - threads:
        with pytest.raises(lc.LayoutError, match=f"{other} is not one of its .* threads"):
            mma.get_slice(other)
