"""Convert the filters of any spconv's state dict to the layout of spconv 2.3.

In ``load_state_dict`` a layer sees only its own filter; one of K = C channels in 1.x's layout is an
error, since its shape leaves the layout open. :func:`convert_state_dict` sees all filters, and
``constants.SAVED_WEIGHT_LAYOUT`` sets the layout for every layer. A state dict saved by layers with
``SparseModule._version = 2``, such as layoutconv's and mmdetection3d's, records that its filters
are KRSC.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from typing import TYPE_CHECKING

from ....errors import ArgumentError
from .conv import SparseConvolution
from .modules import is_sparse_conv
from .weight_layouts import fits_some
from .weight_layouts import layouts_of as layouts_of
from .weight_layouts import to_krsc as to_krsc

if TYPE_CHECKING:
    from torch import Tensor, nn


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
