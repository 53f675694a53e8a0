"""Windows and merged modes: what they map each coordinate to, and that they make im2col."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from layoutconv import E, Layout, LayoutError
from layoutconv.conv import fprop_view
from layoutconv.conv.windows import merge, windows
from layoutconv.errors import ArgumentError
from layoutconv.testing.problems import conv_problems
from layoutconv.view.gemm_view import stages

from .loops import ranges

IMAGE = Layout((6, 6), (6, 1))


def test_the_windows_of_ck_tile():
    """The 6x6 image and the 3x3 windows that CK Tile explains its convolutions with."""
    view = windows(IMAGE, (3, 3))
    assert view == Layout((4, 4, 3, 3), (6, 1, 6, 1))
    matrix = merge(view, ((0, 1), (2, 3)))
    assert (matrix[0].size(), matrix[1].size()) == (16, 9)
    rows = [(p, q) for p in range(4) for q in range(4)]
    taps = [(r, s) for r in range(3) for s in range(3)]
    assert [[matrix(i, j) for j in range(9)] for i in range(16)] == [
        [6 * (p + r) + (q + s) for r, s in taps] for p, q in rows
    ]


@st.composite
def images(draw):
    """A flat image of 1 to 3 modes with strides of any sign, and windows that fit it."""
    rank = draw(st.integers(1, 3))

    def each(low, high):
        return draw(st.lists(st.integers(low, high), min_size=rank, max_size=rank))

    window, stride, dilation, more = each(1, 3), each(1, 3), each(1, 2), each(0, 3)
    spans = [d * (t - 1) + 1 for d, t in zip(dilation, window, strict=True)]
    shape = tuple(span + extra for span, extra in zip(spans, more, strict=True))
    return Layout(shape, tuple(each(-9, 30))), window, stride, dilation


@settings(max_examples=100, deadline=None)
@given(case=images())
def test_a_window_is_the_image_at_its_cells(case):
    image, window, stride, dilation = case
    view, rank = windows(image, window, stride, dilation), len(window)
    extents = image.shape
    spans = [d * (t - 1) + 1 for d, t in zip(dilation, window, strict=True)]
    # As many windows as fit: the last one does, one more would not.
    counts = [
        sum(1 for first in range(0, extent, step) if first + span <= extent)
        for extent, span, step in zip(extents, spans, stride, strict=True)
    ]
    assert view.shape == (*counts, *window)
    for crd in ranges(*view.shape):
        places = zip(crd[:rank], crd[rank:], stride, dilation, strict=True)
        assert view(*crd) == image(*(p * s + t * d for p, t, s, d in places))


@settings(max_examples=50, deadline=None)
@given(problem=conv_problems(channels=3))
def test_windows_of_coordinates_are_im2col(problem):
    """The merged windows of a padded image, shifted by the padding, are the view of the pass."""
    if not problem.N:
        return
    padded = Layout((problem.N, *problem.padded, problem.C), tuple(map(E, range(problem.rank + 2))))
    view = windows(
        padded, (1, *problem.taps, 1), (1, *problem.stride, 1), (1, *problem.dilation, 1)
    )
    modes = problem.rank + 2
    channel, taps = modes - 1, range(modes + 1, 2 * modes - 1)
    matrix = merge(view, (range(channel), (*taps, channel)))
    im2col = stages(fprop_view(problem).a)[0].layout
    assert (matrix[0].size(), matrix[1].size()) == (im2col[0].size(), im2col[1].size())
    for m, k in ranges(int(im2col[0].size()), int(im2col[1].size())):
        assert tuple(map(int, matrix(m, k))) == tuple(map(int, im2col(m, k)))


def test_a_nested_mode_keeps_its_digits():
    """Interleaved channels, 4 at a time, stay as they are beside windows along the rows."""
    interleaved = Layout((6, (4, 8)), (4, (1, 24)))
    assert windows(interleaved, (3, 1)) == Layout((4, (4, 8), 3, 1), (4, (1, 24), 4, 0))
    # Windows across the digits of a mode: no layout is them, and none is returned.
    with pytest.raises(LayoutError, match="crosses a mode boundary"):
        windows(interleaved, (1, 2))


@settings(max_examples=50, deadline=None)
@given(st.data())
def test_a_merged_mode_runs_its_last_mode_fastest(data):
    extents = data.draw(st.lists(st.integers(1, 3), min_size=1, max_size=4))
    strides = data.draw(st.lists(st.integers(-5, 40), min_size=len(extents), max_size=len(extents)))
    order = data.draw(st.permutations(range(len(extents))))
    cut = data.draw(st.integers(0, len(extents)))
    layout, groups = Layout(tuple(extents), tuple(strides)), (order[:cut], order[cut:])
    merged = merge(layout, groups)
    for i, rows in enumerate(ranges(*(extents[mode] for mode in groups[0]))):
        for j, columns in enumerate(ranges(*(extents[mode] for mode in groups[1]))):
            crd = dict(zip(order, (*rows, *columns), strict=True))
            assert merged(i, j) == layout(*(crd[mode] for mode in range(len(extents))))


@pytest.mark.parametrize(
    ("call", "error"),
    [
        (lambda: windows(IMAGE, (3,)), "`window`: expected 2 extents"),
        (lambda: windows(IMAGE, (3, 0)), "`window`: expected every entry >= 1, got 0"),
        (lambda: windows(IMAGE, (3, 7)), "fits the 6 cells of mode 1, got one that spans 7"),
        (lambda: windows(IMAGE, (3, 3), dilation=(1, 3)), "mode 1, got one that spans 7"),
        (lambda: windows(IMAGE, (3, 3), stride=0), "`stride`: expected every entry >= 1"),
        (lambda: windows(IMAGE, (3, 3), stride=(1, 1, 1)), "`stride`: expected an int, or 2"),
        (lambda: merge(IMAGE, ((0,), (2,))), "`groups`: expected modes 0 to 1 of"),
        (lambda: merge(IMAGE, ((0, 1), (1,))), "every mode once, got mode 1 twice"),
        (lambda: merge(IMAGE, ((0,), ())), "in a group, got mode 1 of"),
    ],
)
def test_what_is_no_window_is_an_error(call, error):
    with pytest.raises(ArgumentError, match=error):
        call()


def test_a_mode_of_one_element_may_be_left_out():
    assert merge(Layout((4, 1), (3, 9)), ((0,), ())) == Layout((4, 1), (3, 0))
