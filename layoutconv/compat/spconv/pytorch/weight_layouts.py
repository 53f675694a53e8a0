"""The layouts in which spconv's versions store filters, and how to tell them apart.

K filters of C channels and taps ``(T, R, S)`` are stored as

=======  ==================  =====================================================================
"KRSC"   (K, T, R, S, C)     spconv 2.2 and newer, and layoutconv
"RSKC"   (T, R, S, K, C)     spconv 2.0 and 2.1, layers with ``ConvAlgo.Native``; the others KRSC
"RSCK"   (T, R, S, C, K)     spconv 1.x
=======  ==================  =====================================================================

A filter of one tap is an exception in all layouts. If its layer is submanifold, or all its strides
are 1, spconv multiplies by ``weight.view(C, K)``, whatever the parameter's shape, and so does
layoutconv: every layout has the same numbers of such a filter in the same order. A strided filter
of one tap is like any other.

All filters of a state dict are RSCK, or each is KRSC or RSKC. If shapes leave that open:

- if all filters can be KRSC, they are taken to be;
- else nothing is guessed: an error asks for the layout.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ....errors import ArgumentError, check_choice

if TYPE_CHECKING:
    from torch import Tensor

Shape = Sequence[int]

LAYOUTS = ("KRSC", "RSKC", "RSCK")


def to_krsc(weight: Tensor, layout: str) -> Tensor:
    """Convert a filter that is stored in ``layout`` to (K, *taps, C).

    >>> import torch
    >>> to_krsc(torch.empty(3, 3, 3, 16, 32), "RSCK").shape
    torch.Size([32, 3, 3, 3, 16])
    """
    check_choice("layout", layout, LAYOUTS)
    if layout == "KRSC":
        return weight
    return weight.movedim(-2 if layout == "RSKC" else -1, 0).contiguous()


def _fits(stored: Shape, wanted: Shape) -> dict[str, bool]:
    K, *taps, C = wanted
    shapes = [K, *taps, C], [*taps, K, C], [*taps, C, K]
    return {layout: list(stored) == s for layout, s in zip(LAYOUTS, shapes, strict=True)}


def fits_some(stored: Shape, wanted: Shape) -> bool:
    """Return whether a filter for (K, *taps, C) may have this stored shape.

    >>> fits_some((1, 4, 6), (6, 1, 4)), fits_some((2, 2, 6), (6, 1, 4))
    (True, False)
    """
    return any(_fits(stored, wanted).values())


def layouts_of(shapes: Sequence[tuple[Shape, Shape]]) -> list[str] | None:
    """Return the layout of each filter of a state dict, None if the shapes leave it open.

    Args:
        shapes: of each filter, as stored and as (K, *taps, C).

    Raises :class:`~layoutconv.errors.ArgumentError` if no layout fits.

    >>> layouts_of([((3, 3, 16, 32), (32, 3, 3, 16)), ((3, 3, 32, 32), (32, 3, 3, 32))])
    ['RSCK', 'RSCK']
    >>> layouts_of([((3, 3, 32, 32), (32, 3, 3, 32))]) is None
    True
    """
    fits = [_fits(stored, wanted) for stored, wanted in shapes]
    second = ["KRSC" if f["KRSC"] else "RSKC" for f in fits if f["KRSC"] or f["RSKC"]]
    is_first, is_second = all(f["RSCK"] for f in fits), len(second) == len(fits)
    if is_second and set(second) <= {"KRSC"}:
        return second
    if is_second:  # with a filter that is not KRSC, if it is not of 1.x: others may not be it, too
        either = any(f["KRSC"] and f["RSKC"] for f in fits)
        return None if is_first or either else second
    if is_first:
        return ["RSCK"] * len(fits)
    for f, (stored, wanted) in zip(fits, shapes, strict=True):
        if not any(f.values()):
            expected = f"a filter of shape {tuple(wanted)}, (K, *taps, C), or of an older layout"
            raise ArgumentError("state_dict", expected, tuple(stored))
    expected = "filters of spconv 1.x, or of 2.x"
    raise ArgumentError("state_dict", expected, f"a mixture: {[tuple(s) for s, _ in shapes]}")
