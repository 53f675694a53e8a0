"""Channel padding: round the channels of a tap up to what TMA copies, 48 to 64 for instance.

TMA and halo reuse need k-tiles that lie within one tap. Where the channels of a tap are no multiple
of the shortest k-tile, 32 elements of 16 bits, their mode is extended. The *padded* channels are
out of bounds in both operands: such a coordinate reads zero, and TMA fills its box with zeros.
Blocks of 16 that are all zeros are not multiplied where ``structural_zeros`` finds them.

In a filter gradient channels and taps are columns of the GEMM, and a line of shared memory must lie
within one tap. There padded channels are zeros in B, and out of bounds in D, so not stored.
"""

from __future__ import annotations

from math import prod

from layoutconv.algebra.composed import ComposedLayout
from layoutconv.algebra.int_tuple import flatten
from layoutconv.algebra.layout import Layout
from layoutconv.algebra.stride import ScaledBasis
from layoutconv.algebra.symint import is_runtime

from ..view.gemm_view import GemmView, OperandLayout, gathers, stages
from ..view.operands import static

LETTER = "C0"
WASTE = 2.0  # times as many channels, at most


def padded_channels(view: GemmView, k_tile: int) -> GemmView | None:
    """Return the view with its channels padded to a multiple of ``k_tile``.

    None if they are one already, if k has no taps, with groups, if padding more than doubles them,
    or if the channels are not one mode of memory in both operands.

    >>> from layoutconv.conv import ConvProblem, fprop_view
    >>> view = fprop_view(ConvProblem((1, 9, 9, 48), (40, 3, 3), padding=1))
    >>> print(padded_channels(view, 32).a.inner)
    ((Q,P,N),(C0,S,R)):((1@2,1@1,1@0),(1@3,1@2,1@1))
    >>> padded_channels(view, 16) is None
    True
    """
    extents = [flatten(operand.shape[1]) for operand in (view.a, view.b)]
    channels = {int(of[0]) for of in extents if not is_runtime(of[0])}
    if len(view.a.shape) != 2 or len(channels) != 1 or any(len(of) < 2 for of in extents):
        return None
    (count,) = channels
    whole = -(-count // k_tile) * k_tile
    if whole == count or whole > WASTE * count:
        return None
    a, b = (_padded(operand, 1, count, whole) for operand in (view.a, view.b))
    if a is None or b is None:
        return None
    return GemmView(a, b, view.d, columns=view.columns)


def padded_lines(view: GemmView, line: int) -> GemmView | None:
    """Return a view whose sums run over pixels with the channels of B's columns padded to whole
    lines of shared memory, of ``line`` elements.

    None if each line lies within one tap already, with groups, if padding more than doubles the
    channels, or if these are not one mode of memory in B and in D.

    >>> from layoutconv.conv import ConvProblem, wgrad_view
    >>> view = wgrad_view(ConvProblem((1, 9, 9, 48), (40, 3, 3), padding=1))
    >>> padded = padded_lines(view, 64)
    >>> print(padded.b.inner)
    ((C0,S,R),(Q,P,N)):((1@3,1@2,1@1),(1@2,1@1,1@0))
    >>> print(padded.d.inner)  # a mode of one row moves the channel: kernels then check its bounds
    ((K,1),(C0,S,R)):((1@0,1@3),(1@3,1@2,1@1))
    >>> padded_lines(view, 48) is None
    True
    """
    channels, *taps = flatten(view.b.shape[0])
    if len(view.a.shape) != 2 or view.columns is not None or is_runtime(channels):
        return None
    count, whole = int(channels), -(-int(channels) // line) * line
    if prod(map(int, taps)) == 1 or whole == count or whole > WASTE * count:
        return None
    b, d = _padded(view.b, 0, count, whole), _padded(view.d, 1, count, whole)
    if b is None or d is None:
        return None
    (rows, columns), (row_steps, steps) = d.inner.shape, d.inner.stride
    inner = Layout(((rows, 1), columns), ((row_steps, steps[0]), steps))
    return GemmView(view.a, b, ComposedLayout(d.outer, d.offset, inner))


def has_padded_channels(view: GemmView) -> bool:
    """Return whether taps have more channels than memory, as :func:`padded_channels` and
    :func:`padded_lines` name them: other columns may leave memory where rows of k are pixels.

    Only TMA masks them; threads that copy would read the elements beyond the channels.

    >>> from layoutconv.conv import ConvProblem, fprop_view
    >>> view = fprop_view(ConvProblem((1, 9, 9, 48), (40, 3, 3), padding=1))
    >>> has_padded_channels(view), has_padded_channels(padded_channels(view, 32))
    (False, True)
    """
    return _is_padded(view.a, 1) or _is_padded(view.b, 0)


def _is_padded(layout: OperandLayout, mode: int) -> bool:
    first, *rest = stages(layout)
    shape, stride = flatten(first.layout.shape[mode]), flatten(first.layout.stride[mode])
    if not rest or not shape or not isinstance(stride[0], ScaledBasis) or str(shape[0]) != LETTER:
        return False
    stored = rest[0].layout.shape[stride[0].path[0]]
    return not is_runtime(stored) and int(shape[0]) > int(stored)


def _padded(layout: OperandLayout, mode: int, count: int, whole: int) -> ComposedLayout | None:
    """Return an operand with ``whole`` channels instead of ``count`` as the first leaf of a mode;
    None where that fails.
    """
    chain = stages(layout)
    if len(chain) != 2 or any(map(gathers, chain)) or not isinstance(layout, ComposedLayout):
        return None
    domain, inner = chain[0], layout.inner
    if not isinstance(inner, Layout):
        return None
    extents, steps = inner.shape[mode], inner.stride[mode]
    if not isinstance(extents, tuple) or isinstance(extents[0], tuple):
        return None
    step, every = steps[0], flatten(inner.stride)
    if not all(isinstance(d, ScaledBasis) and len(d.path) == 1 for d in every):
        return None
    (channel,) = step.path
    start = domain.offset[channel] if domain.offset else 0
    alone = sum(d.path == step.path for d in every) == 1
    stored = chain[1].layout.shape[channel]
    if not alone or step.value != 1 or start or is_runtime(stored) or int(stored) != count:
        return None
    wider = static(whole, LETTER), *extents[1:]
    shape = tuple(wider if at == mode else part for at, part in enumerate(inner.shape))
    return ComposedLayout(layout.outer, layout.offset, Layout(shape, inner.stride))
