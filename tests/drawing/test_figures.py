"""Figures: every coordinate once, and in its cell what the object gives there."""

from __future__ import annotations

from xml.etree import ElementTree

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import layoutconv as lc
from layoutconv import E, Layout, Swizzle, Tensor
from layoutconv.algebra.int_tuple import product
from layoutconv.conv import ConvProblem, fprop_view
from layoutconv.drawing.api import draw
from layoutconv.drawing.axis import mode_axis, shown_positions
from layoutconv.drawing.palette import channels, ramp, wheel
from layoutconv.errors import ArgumentError, ArgumentTypeError

from .figures import cells, fact, grids, placed

modes = st.recursive(
    st.integers(1, 4),
    lambda inner: st.lists(inner, min_size=1, max_size=2).map(tuple),
    max_leaves=3,
)
shapes = st.one_of(modes, st.lists(modes, min_size=1, max_size=3).map(tuple))


@st.composite
def layouts(draw: st.DrawFn) -> Layout:
    def strides(shape: object) -> object:
        return tuple(map(strides, shape)) if isinstance(shape, tuple) else draw(st.integers(-9, 9))

    shape = draw(shapes)
    return Layout(shape, strides(shape))


@settings(max_examples=60, deadline=None)
@given(layouts())
def test_every_coordinate_of_a_layout_is_drawn_once_with_its_offset(layout: Layout) -> None:
    figure = draw(layout, limit=1 << 10)
    drawn = {int(fact(cell, "index")): cell for cell in cells(figure)}
    panels = product(layout.shape[2:]) if isinstance(layout.shape, tuple) else 1
    if panels <= 6:
        assert sum(1 for _ in cells(figure)) == layout.size()
        assert set(drawn) == set(range(layout.size()))
    for index, cell in drawn.items():
        assert cell.label == fact(cell, "offset") == str(layout(index))


@settings(max_examples=40, deadline=None)
@given(layouts())
def test_equal_colours_say_equal_offsets(layout: Layout) -> None:
    colour_of: dict[str, str] = {}
    for cell in cells(draw(layout)):
        assert colour_of.setdefault(cell.label, cell.fill) == cell.fill
    assert len(set(colour_of.values())) == len(colour_of)


def test_rows_and_columns_are_the_modes() -> None:
    layout = lc.parse("((2,2),(4,2)):((1,8),(2,16))")
    (grid,) = grids(draw(layout))
    for i, j, cell in placed(grid):
        assert cell.label == str(layout(i, j))


def test_headers_are_the_digits_of_the_coordinate() -> None:
    axis = mode_axis((2, (3, 2)), (1, (4, 8)), limit=99)
    assert [band.name for band in axis.bands] == ["2:1", "3:4", "2:8"]
    for position in range(12):
        digits = [
            next(label for start, stop, label in band.spans if start <= position < stop)
            for band in axis.bands
        ]
        assert digits == [str(position % 2), str(position // 2 % 3), str(position // 6)]
    assert axis.breaks == (0, 0, 1, 0, 1, 0, 2, 0, 1, 0, 1, 0)


@settings(max_examples=100, deadline=None)
@given(st.integers(1, 10**9), st.integers(4, 40), st.data())
def test_abbreviation_keeps_both_ends(n: int, limit: int, data: st.DataObject) -> None:
    keep = data.draw(st.integers(0, n - 1))
    positions = shown_positions(n, limit, (1, 4, 16))
    numbers = [p for p in positions if p is not None]
    assert numbers == sorted(set(numbers))
    assert positions[0] == 0
    assert positions[-1] == n - 1
    assert len(positions) <= limit
    assert (None in positions) == (len(numbers) < n)
    assert keep in shown_positions(n, limit, (1, 4, 16), [keep])


def test_a_huge_layout_is_abbreviated_and_keeps_its_corners() -> None:
    layout = Layout((10**9, 10**6), (10**6, 1))
    (grid,) = grids(draw(layout, limit=8))
    corners = [grid.cells[i][j].label for i in (0, -1) for j in (0, -1)]
    far = (10**9 - 1) * 10**6
    assert corners == ["0", str(10**6 - 1), str(far), str(far + 10**6 - 1)]
    assert len(grid.cells) == len(grid.cells[0]) == 8


def test_panels_are_the_modes_after_the_second() -> None:
    layout = Layout((2, 3, 2, 2), (1, 2, 6, 12))
    panels = {grid.title: grid for grid in grids(draw(layout))}
    assert list(panels) == ["(_,_,0,0)", "(_,_,1,0)", "(_,_,0,1)", "(_,_,1,1)"]
    for i, j, cell in placed(panels["(_,_,1,1)"]):
        assert cell.label == str(layout(i, j, 1, 1))


@pytest.mark.parametrize("swizzle", [Swizzle(3, 0, 3), Swizzle(2, 1, 3), Swizzle(2, 0, -2)])
def test_a_swizzle_is_drawn_over_one_period(swizzle: Swizzle) -> None:
    drawn = {int(fact(cell, "inner")): int(cell.label) for cell in cells(draw(swizzle))}
    assert drawn == {x: swizzle(x) for x in range(swizzle.size())}


def test_a_swizzled_column_has_every_colour() -> None:
    (grid,) = grids(draw(lc.parse("S<3,0,3> o 0 o (8,8):(8,1)")))
    for line in (*grid.cells, *zip(*grid.cells, strict=True)):
        assert len({cell.fill for cell in line}) == 8
    (plain,) = grids(draw(Layout((8, 8), (8, 1)), element_bits=128))
    assert all(
        len({cell.fill for cell in column}) == 1 for column in zip(*plain.cells, strict=True)
    )


def test_banks_are_words_of_four_bytes_modulo_32() -> None:
    (grid,) = grids(draw(Layout((2, 64), (64, 1)), element_bits=16, limit=64))
    fills = [cell.fill for cell in grid.cells[0]]
    assert all(fills[i] == fills[j] for i in range(64) for j in range(64) if i // 2 == j // 2)
    assert len(set(fills)) == 32
    assert [cell.fill for cell in grid.cells[1]] == fills


def test_maps_between_coordinates_are_bounded() -> None:
    gather = Layout((4,), (lc.CustomStride(lc.IndexedGather([7, -1, 5, 3]), E(0)),))
    rows = lc.ComposedLayout(Layout((8,), (10,)), 0, gather)
    padded = lc.ComposedLayout(rows, (-1,), Layout((4, 3), (E(0), E(0))))
    (grid,) = grids(draw(padded))
    for i, j, cell in placed(grid):
        at = i + j - 1
        expected = "padding" if not 0 <= at < 4 else ("absent" if at == 1 else "value")
        assert cell.kind == expected
        label = {"padding": "", "absent": "-1"}.get(expected)
        assert cell.label == (str(10 * [7, -1, 5, 3][at]) if label is None else label)


def test_a_tensor_shows_its_values() -> None:
    values = [x / 2 for x in range(24)]
    tensor = lc.Tensor(values, Layout((4, 6), (6, 1)))
    (grid,) = grids(draw(tensor))
    for i, j, cell in placed(grid):
        assert cell.label == f"{tensor(i, j):.3g}"
        assert fact(cell, "at") == str(6 * i + j)


@pytest.mark.parametrize("name", ["m8n8k4.f64", "m16n8k16.f16", "m16n8k32.s4"])
def test_fragments_of_an_atom_tile_its_matrices(name: str) -> None:
    atom = lc.mma_atom(name)
    M, N, K = atom.shape
    b, a, c = grids(draw(atom, limit=256))
    places = {
        "a": (a, atom.a, lambda i, j: i + M * j),
        "b": (b, atom.b, lambda k, n: n + N * k),
        "c": (c, atom.c, lambda i, j: i + M * j),
    }
    for grid, fragment, position in places.values():
        pairs = set()
        for i, j, cell in placed(grid):
            thread, value = (int(line[1:]) for line in cell.label.split("\n"))
            assert fragment(thread, value) == position(i, j)
            pairs.add((thread, value))
        assert len(pairs) == fragment.size()
    assert (len(a.rows), len(b.columns), len(a.columns)) == (len(c.rows), len(c.columns), K)


def test_tiles_of_threads_are_drawn_as_their_partitions() -> None:
    mma = lc.make_tiled_mma(lc.mma_atom("m16n8k16.f16"), (2, 2, 1))
    copy = lc.make_tiled_copy_C(lc.universal_copy(2), mma)
    c = grids(draw(mma, limit=128))[2]
    (written,) = grids(draw(copy, limit=128))
    whole = lc.make_identity_tensor((32, 16))
    for i, j, cell in placed(c):
        thread, value = (int(line[1:]) for line in cell.label.split("\n"))
        assert mma.get_slice(thread).partition_C(whole)(value) == (i, j)
        assert written.cells[i][j].label == cell.label


def test_what_every_thread_reads_has_no_colour_of_a_thread() -> None:
    b, _, _ = grids(draw(lc.wgmma_atom(8)))
    assert {cell.label.split("\n")[0] for _, _, cell in placed(b)} == {"all"}


def test_ldmatrix_hands_a_row_of_eight_to_four_threads() -> None:
    source, destination = grids(draw(lc.copy_atom("ldmatrix.x2")))
    for row in (0, 5, 12):
        assert {cell.key for cell in source.cells[row]} == {f"T{row}"}
        first = 4 * (row % 8)
        assert [c.key for c in destination.cells[row]] == [f"T{first + j // 2}" for j in range(8)]


def test_the_sides_of_a_wide_copy_lie_one_above_the_other() -> None:
    narrow, wide = draw(lc.copy_atom("ldmatrix.x2")), draw(lc.tma_atom((16, 8), 16, swizzle="SW32"))
    assert [len(row) for row in narrow.grids] == [2]
    assert [len(row) for row in wide.grids] == [1, 1]


def test_a_thread_value_layout_has_to_fit_its_tile() -> None:
    fragment = lc.parse("((4,8),(2,2)):((32,1),(16,8))")
    with pytest.raises(
        lc.LayoutValueError, match=r"thread 0, value 1 of .* at position 16, .* tile of 8x1"
    ):
        draw(fragment, tv=(8, 1))
    (grid,) = grids(draw(fragment, tv=(16, 8)))
    assert all(cell.label for _, _, cell in placed(grid))


@pytest.mark.parametrize(
    ("memory", "collisions"),
    [
        (None, "no bank conflicts"),
        (Layout((8, 8), (8, 1)), "bank conflicts: 2 wavefronts for 1"),
        (Swizzle(3, 0, 3) @ Layout((8, 8), (8, 1)), "no bank conflicts"),
        (Layout((8, 8), (32, 1)), "bank conflicts: 8 wavefronts for 1"),
    ],
)
def test_threads_name_the_banks_of_their_values(memory: object, collisions: str) -> None:
    """By the definition: words of 4 bytes go around 32 banks; the title says what a warp meets."""
    layout, stored = Layout((32, 2), (1, 32)), Layout(64) if memory is None else memory
    figure = draw(layout, tv=(8, 8) if memory is None else memory, element_bits=32)
    assert figure.title.endswith(f"; {collisions}")
    (grid,) = grids(figure)
    worst = 0
    for value in range(2):
        banks = [int(stored(32 * value + thread)) % 32 for thread in range(32)]
        worst = max(worst, *map(banks.count, banks))
    assert ("no bank" in collisions) == (worst == 1)
    for i, j, cell in placed(grid):
        thread, value = (i + 8 * j) % 32, (i + 8 * j) // 32
        bank = int(stored(i + 8 * j)) % 32
        assert cell.label == f"T{thread}\nV{value}\nb{bank}"
        assert fact(cell, "bank") == str(bank)
    halves = draw(layout, tv=(8, 8), element_bits=16)
    assert [fact(cell, "bank") for i, j, cell in placed(*grids(halves)) if j == 0] == list(
        "00112233"
    )


def test_a_tiled_copy_names_its_banks() -> None:
    copy = lc.make_tiled_copy_tv(lc.universal_copy(), Layout((8, 4)), (1, 2))
    (grid,) = grids(draw(copy, element_bits=32))
    assert {fact(cell, "bank") for _, _, cell in placed(grid)} == set(map(str, range(32)))
    with pytest.raises(ArgumentError, match="`tv`: expected a tile of 8x8, as the copy has"):
        draw(copy, tv=Layout((8, 9)), element_bits=32)


def test_values_of_a_tensor_are_any() -> None:
    values = [[1, 2], {"a": 1}, np.array([1, 2]), torch.ones(2), float("nan"), None, "<", (1, [2])]
    (grid,) = grids(draw(Tensor(values, Layout((2, 4)))))
    assert [fact(cell, "value") for _, _, cell in placed(grid)][:4] == [
        "[1, 2]", "[1 2]", "nan", "<",
    ]  # fmt: skip


def test_texts_of_a_tensor_are_printable() -> None:
    """A terminal would obey a value, and XML has no such characters."""
    figure = draw(Tensor(["\x1b[31m", "a\nb", "\x00", "<&>"], Layout((2, 2))))
    (grid,) = grids(figure)
    assert [cell.label for _, _, cell in placed(grid)] == ["\ufffd[31m", "\ufffd", "a b", "<&>"]
    assert figure.render("text").replace("\n", "").isprintable()
    ElementTree.fromstring(figure.render("svg"))


def test_a_layout_of_no_coordinates_has_no_bank() -> None:
    empty = Layout((lc.SymInt(0, "N"), 4))
    assert draw(empty, element_bits=16).legend == ()
    assert draw(lc.composition(Swizzle(1, 0, 1), Layout((4, 4))), element_bits=16).legend


@pytest.mark.parametrize(
    ("layout", "message"),
    [
        (Layout((4, 2), (E(0), E(1))), r"thread 0, value 0 of .* is at \(0,0\); expected a posit"),
        (Layout((4, 2), (3 * E(0, 1), E(2))), "expected a position in a tile, an integer"),
        (Layout((lc.symbols("Q"), 4)), "the extent Q of .* has no value to draw"),
    ],
)
def test_positions_in_a_tile_are_integers(layout: Layout, message: str) -> None:
    with pytest.raises(lc.LayoutError, match=message):
        draw(layout, tv=(4, 2))


@pytest.mark.parametrize(
    ("obj", "options", "message"),
    [
        (Layout((4, 2)), {"tv": Layout(8)}, "`tv`: expected the extents .*, or its layout, got 8"),
        (Layout((4, 2)), {"tv": Layout((4, 2), (E(0), E(1)))}, "offsets are integers"),
        (Layout(4), {"row": 1}, "`row`: expected None for a Layout, got 1"),
        (Swizzle(1, 0, 1), {"tv": (2, 2)}, "`tv`: expected None for a Swizzle"),
        (Layout(4), {"limit": 2}, "`limit`: expected an int >= 4, got 2"),
        (Layout(4), {"element_bits": 12}, "`element_bits`: expected a power of two"),
        (Layout((2, 2), (E(0), E(1))), {"element_bits": 16}, "`element_bits`: .* integers"),
        (Layout((4, 2)), {"tv": (4, 0)}, "`tv`: expected the extents"),
        (Layout(4), {"format": "svg"}, "`path`: expected where to write svg"),
        (Layout(4), {"element_bits": "8"}, "`element_bits`: expected a power .* got '8'"),
        (Layout(4), {"limit": "8"}, "`limit`: expected an int >= 4, got '8'"),
        (Layout(4), {"path": 5}, "`path`: expected a path, a str or os.PathLike, got int"),
        (Layout(4), {"path": "x.bmp"}, r"`path`: expected a name that ends in \.svg"),
    ],
)
def test_what_makes_no_sense_is_refused(obj: object, options: dict, message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        draw(obj, **options)


def test_what_has_no_picture_is_refused() -> None:
    with pytest.raises(ArgumentTypeError, match=r"one of Layout, .* GemmView, .*, got float"):
        draw(4.0)


def test_dark_text_reads_on_every_colour() -> None:
    """Contrast of at least 7, the better grade of WCAG 2, with the ink that text is written in."""

    def luminance(colour: str) -> float:
        linear = [
            c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4
            for c in (channel / 255 for channel in channels(colour))
        ]
        return sum(weight * c for weight, c in zip((0.2126, 0.7152, 0.0722), linear, strict=True))

    ink = luminance("#1f2937")
    for colour in [wheel(i, 64) for i in range(64)] + [ramp(i / 64) for i in range(65)]:
        assert (luminance(colour) + 0.05) / (ink + 0.05) > 7


@pytest.mark.parametrize(
    ("said", "layout"),
    [("(4,8):(8,1)", Layout((4, 8), (8, 1))), ((4, 8), Layout((4, 8))), (6, Layout(6))],
)
def test_a_notation_and_a_shape_are_drawn_as_layouts(said: object, layout: Layout) -> None:
    assert draw(said) == draw(layout)


def test_what_is_no_layout_is_refused_by_name() -> None:
    with pytest.raises(ArgumentTypeError, match=r"GemmView, a notation or a shape, got list"):
        draw([Layout(4)])
    with pytest.raises(lc.LayoutError, match=r"\(4,8\):\n"):
        draw("(4,8):")
    with pytest.raises(ArgumentError, match="`row`: expected a GEMM row, 0 <= row < 4, got 'one'"):
        fprop_view(ConvProblem((1, 4, 4, 2), (3, 3, 3))).draw(row="one")  # type: ignore[arg-type]
