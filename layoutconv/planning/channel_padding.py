"""Channel padding: round the channels of a tap up to whole k-tiles, 48 to 64 for instance.

TMA and halo reuse need k-tiles that lie within one tap. Where the channels of a tap are no multiple
of the shortest k-tile, 32 elements of 16 bits, their mode is extended. The *padded* channels are
out of bounds in both operands: such a coordinate reads zero, and TMA fills its box with zeros.
Blocks of 16 that are all zeros are not multiplied where ``structural_zeros`` finds them.
"""

from __future__ import annotations

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
    a, b = (_padded(operand, count, whole) for operand in (view.a, view.b))
    if a is None or b is None:
        return None
    return GemmView(a, b, view.d, columns=view.columns)


def has_padded_channels(view: GemmView) -> bool:
    """Return whether a tap of A has more channels than memory, as :func:`padded_channels` names
    them: other columns may leave memory where rows of k are pixels.

    Only TMA masks them; threads that copy would read the elements beyond the channels.

    >>> from layoutconv.conv import ConvProblem, fprop_view
    >>> view = fprop_view(ConvProblem((1, 9, 9, 48), (40, 3, 3), padding=1))
    >>> has_padded_channels(view), has_padded_channels(padded_channels(view, 32))
    (False, True)
    """
    first, *rest = stages(view.a)
    channels, step = (flatten(part)[0] for part in (first.layout.shape[1], first.layout.stride[1]))
    if not rest or not isinstance(step, ScaledBasis) or str(channels) != LETTER:
        return False
    stored = rest[0].layout.shape[step.path[0]]
    return not is_runtime(stored) and int(channels) > int(stored)


def _padded(layout: OperandLayout, count: int, whole: int) -> OperandLayout | None:
    """Return an operand with ``whole`` channels instead of ``count``; None where that fails."""
    chain = stages(layout)
    if len(chain) != 2 or any(map(gathers, chain)) or not isinstance(layout, ComposedLayout):
        return None
    domain, inner = chain[0], layout.inner
    if not isinstance(inner, Layout):
        return None
    (_, columns), (_, column_steps) = inner.shape, inner.stride
    if not isinstance(columns, tuple) or isinstance(columns[0], tuple):
        return None
    step = column_steps[0]
    every = flatten(inner.stride)
    if not all(isinstance(d, ScaledBasis) and len(d.path) == 1 for d in every):
        return None
    (mode,) = step.path
    start = domain.offset[mode] if domain.offset else 0
    alone = sum(d.path == step.path for d in every) == 1
    stored = chain[1].layout.shape[mode]
    if not alone or step.value != 1 or start or is_runtime(stored) or int(stored) != count:
        return None
    shape = (inner.shape[0], (static(whole, LETTER), *columns[1:]))
    return ComposedLayout(layout.outer, layout.offset, Layout(shape, inner.stride))
