"""Windows of an image, and modes merged into a matrix: CK Tile's view of a convolution, as layouts.

Composable Kernel's tile library builds im2col as a chain of coordinate transforms of a tensor
descriptor: *embed* turns a spatial mode into window positions and taps, *merge* joins modes into
the rows and columns of a matrix. Both are operations on a layout. On the memory layout they give
offsets. On the identity layout of an image they give coordinates: the inner map of a
:class:`~layoutconv.GemmView` operand, which checks bounds and so supports padding.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..algebra import Layout, composition, make_layout
from ..errors import ArgumentError
from .problem import per_mode


def windows(
    image: Layout,
    window: Sequence[int],
    stride: int | Sequence[int] = 1,
    dilation: int | Sequence[int] = 1,
) -> Layout:
    """Return every window of an image: one mode of positions per image mode, then one of taps each.

    Args:
        image: a layout, such as ``(H, W)``; its strides may be offsets or coordinates.
        window: taps in each mode of the image. Use 1 where windows do not extend, as along images
            and channels: the positions are then the mode itself.
        stride: cells from a position to the next: an int, or one per mode.
        dilation: cells from a tap to the next: an int, or one per mode.

    Returns ``(*positions, *taps)`` such that ``windows(image, ...)(p, q, r, s)`` is ``image(p *
    stride + r * dilation, q * stride + s * dilation)``. It has only windows inside the image, since
    a layout has no bounds to pad at. For padding, take the windows of a larger identity layout, and
    shift them by the offset of a ``ComposedLayout``.

    Raises :class:`~layoutconv.errors.ArgumentError` if the number of entries is not the number of
    image modes, or a window does not fit; :class:`~layoutconv.LayoutError` for a nested mode whose
    windows no layout describes.

    >>> print(windows(Layout((6, 6), (6, 1)), (3, 3)))
    (4,4,3,3):(6,1,6,1)
    >>> print(windows(Layout((6, 6), (6, 1)), (3, 2), stride=2, dilation=(1, 3)))
    (2,2,3,2):(12,2,6,3)
    >>> from layoutconv import E
    >>> print(windows(Layout((6, 6), (E(0), E(1))), (3, 3)))
    (4,4,3,3):(1@0,1@1,1@0,1@1)
    """
    modes = [image[i] for i in range(_modes(image))]
    if len(window) != len(modes):
        expected = f"{len(modes)} extents, one per mode of the image"
        raise ArgumentError("window", expected, tuple(window))
    taps = per_mode("window", window, len(modes))
    strides = per_mode("stride", stride, len(modes))
    dilations = per_mode("dilation", dilation, len(modes))
    positions, tap_modes = [], []
    for i, (mode, count, step, apart) in enumerate(
        zip(modes, taps, strides, dilations, strict=True)
    ):
        extent, span = int(mode.size()), apart * (count - 1) + 1
        if span > extent:
            expected = f"a window that fits the {extent} cells of mode {i}"
            raise ArgumentError("window", expected, f"one that spans {span}")
        places = Layout(((extent - span) // step + 1, count), (step, apart))
        whole = count == 1 and step == 1
        pair = make_layout(mode, Layout(1, 0)) if whole else composition(mode, places)
        positions.append(pair[0])
        tap_modes.append(pair[1])
    return make_layout(*positions, *tap_modes)


def merge(layout: Layout, groups: Sequence[Sequence[int]]) -> Layout:
    """Merge each group of modes into one, the last of a group fastest, as CK Tile's merge does.

    Args:
        layout: the layout whose modes to merge.
        groups: the modes of ``layout`` by number, each in one group; modes of extent 1 may be left
            out.

    Returns the layout with ``len(groups)`` modes. The last mode of a group becomes the first of the
    merged one, since layouts are colexicographic: row ``4 * p + q`` of the matrix below is the
    window at ``(p, q)``.

    Raises :class:`~layoutconv.errors.ArgumentError` for a number that is no mode of the layout, and
    for a mode that is in two groups or in none.

    >>> matrix = merge(windows(Layout((6, 6), (6, 1)), (3, 3)), ((0, 1), (2, 3)))
    >>> print(matrix, matrix(4 * 1 + 2, 3 * 2 + 0))  # the tap (2, 0) of the window at (1, 2)
    ((4,4),(3,3)):((1,6),(1,6)) 20
    """
    count = _modes(layout)
    used = [mode for group in groups for mode in group]
    unknown = [mode for mode in used if not 0 <= mode < count]
    if unknown:
        raise ArgumentError("groups", f"modes 0 to {count - 1} of {layout}", unknown[0])
    twice = [mode for mode in used if used.count(mode) > 1]
    if twice:
        raise ArgumentError("groups", "every mode once", f"mode {twice[0]} twice")
    lost = [mode for mode in range(count) if mode not in used and layout[mode].size() != 1]
    if lost:
        expected = "every mode of more than 1 element in a group"
        raise ArgumentError("groups", expected, f"mode {lost[0]} of {layout} in none")
    return make_layout(*(_merged(layout, group) for group in groups))


def _merged(layout: Layout, group: Sequence[int]) -> Layout:
    if not group:
        return Layout(1, 0)
    if len(group) == 1:
        return layout[group[0]]
    return make_layout(*(layout[mode] for mode in reversed(group)))


def _modes(layout: Layout) -> int:
    return len(layout.shape) if isinstance(layout.shape, tuple) else 1
