"""Recognise the layout of a checkpoint's filters, and convert them to that of spconv 2.3.

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

In ``load_state_dict`` a layer sees only its own filter: one of K = C channels in 1.x's layout is
such an error. :func:`convert_state_dict` sees all filters, and ``constants.SAVED_WEIGHT_LAYOUT``
sets the layout for every layer. A state dict saved by layers with ``SparseModule._version = 2``,
such as layoutconv's and mmdetection3d's, records that its filters are KRSC.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from ....errors import ArgumentError, check_choice
from .modules import is_sparse_conv

if TYPE_CHECKING:
    from torch import Tensor, nn

    from .conv import SparseConvolution

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


def convert_state_dict(
    module: nn.Module, state_dict: Mapping[str, Tensor], layout: str | None = None
) -> OrderedDict[str, Tensor]:
    """Convert a state dict of any spconv for a module of today's layers.

    Args:
        module: the network that will load it.
        state_dict: its own, or that of the same network with another spconv's layers. Entries other
            than filters of sparse convolutions of ``module`` stay as they are.
        layout: "KRSC", "RSKC" or "RSCK" of all filters; by default inferred from all their shapes.

    Raises :class:`~layoutconv.errors.ArgumentError` if the shapes leave it open, or fit no layout.

    >>> import torch, layoutconv.compat.spconv.pytorch as spconv
    >>> net = spconv.SparseSequential(
    ...     spconv.SubMConv3d(4, 16, 3, bias=False), spconv.SubMConv3d(16, 16, 3, bias=False)
    ... )
    >>> old = {"0.weight": torch.randn(3, 3, 3, 4, 16), "1.weight": torch.randn(3, 3, 3, 16, 16)}
    >>> new = convert_state_dict(net, old)
    >>> net.load_state_dict(new)
    <All keys matched successfully>
    >>> torch.equal(net[1].weight[5, 0, 1, 2], old["1.weight"][0, 1, 2, :, 5])
    True
    """
    new = OrderedDict(state_dict)
    marks = getattr(state_dict, "_metadata", None)
    filters: dict[str, SparseConvolution] = {}
    for prefix, layer in module.named_modules():
        key = f"{prefix}.weight" if prefix else "weight"
        marked = marks is not None and (marks.get(prefix) or {}).get("version") == 2
        if is_sparse_conv(layer) and key in new and not marked:
            filters[key] = layer
    found: dict[str, str] = {}
    if layout is not None:
        found = dict.fromkeys(filters, layout)
    else:
        # With one tap and K = C, the shape does not tell, and need not.
        telling = {
            key: (new[key].shape, layer.weight.shape)
            for key, layer in filters.items()
            if not (layer.is_matrix and layer.in_channels == layer.out_channels)
        }
        layouts = layouts_of(list(telling.values()))
        if layouts is None:
            expected = "KRSC, RSKC or RSCK: the shapes of these filters leave it open"
            raise ArgumentError("layout", expected, layout)
        found.update(zip(telling, layouts, strict=True))
    for key, layer in filters.items():
        shape = tuple(layer.weight.shape)
        if layer.is_matrix and fits_some(new[key].shape, shape):
            new[key] = new[key].reshape(shape)
            continue
        weight = to_krsc(new[key], found.get(key, "KRSC"))
        if weight.shape != shape:
            expected = f"{key} of {found.get(key, 'KRSC')} layout for {shape}, (K, *taps, C)"
            raise ArgumentError("state_dict", expected, tuple(new[key].shape))
        new[key] = weight
    if marks is not None:
        # Metadata of the dict, as in torch: from now on it records that filters are KRSC.
        prefixes = {key.removesuffix("weight").removesuffix(".") for key in filters}
        marks = OrderedDict(marks)
        marks.update((p, {**(marks.get(p) or {}), "version": 2}) for p in prefixes)
        new._metadata = marks  # type: ignore[attr-defined]
    return new
