"""Containers that apply torch's modules to features of sparse tensors, and cell pruning."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from ..errors import ArgumentTypeError
from ..sparse import SparseTensor, prune
from . import trained_norm
from .dense_batch_norm import BatchNorm1d, BatchNorm2d, BatchNorm3d
from .fused_modules import with_following
from .fused_norm import may_fuse, norm_and_activation
from .image_norm import FORWARDS, counts_images, per_image, with_hooks
from .padded_norm import is_hooked, mixes_rows, on_cells
from .quantized_tensor import has_features
from .scripting import refuse_scripting
from .sparse_modules import SparseConvolution
from .trained_norm import trained_features

if TYPE_CHECKING:
    from torch import Tensor


# torch's modules that would read feature rows as lines of a grid or as words of one sentence: some
# raise unhelpful errors, others compute something else. The values say what to use instead.
_OF_GRIDS = {
    f"torch.nn.modules.{name}": instead
    for name, instead in {
        "conv": "a SubmConv or SparseConv of lc.nn",
        "pooling": "a pool of lc.nn, as SparseMaxPool3d",
        "padding": "the `padding` of lc.nn.SparseConv3d",
        "upsampling": "lc.nn.SparseUnpool",
        **dict.fromkeys(("pixelshuffle", "fold", "rnn", "transformer"), "lc.nn.Features"),
    }.items()
}
_INSTEAD: dict[type, str] = {
    **dict.fromkeys((torch.nn.BatchNorm2d, torch.nn.BatchNorm3d), "torch.nn.BatchNorm1d"),
    **dict.fromkeys((BatchNorm2d, BatchNorm3d), "lc.nn.BatchNorm1d"),
    torch.nn.Dropout1d: "torch.nn.Dropout",
}


class Sequential(torch.nn.Sequential):
    """``torch.nn.Sequential`` that passes the features of a sparse tensor to plain modules.

    A module is plain if its ``forward`` is torch's own: ``BatchNorm1d``, ``SyncBatchNorm``,
    ``LayerNorm``, ``ReLU``, ``Linear``, ``Dropout`` and so on, subclasses that inherit ``forward``
    included; and a ``torch.nn.Sequential`` of those. Plain modules stay as they are, so
    ``convert_sync_batchnorm``, ``DistributedDataParallel`` and optimizers find them. Every other
    module gets the sparse tensor itself; wrap your own in :class:`Features` if it wants features.
    torch's modules over grids, ``Conv3d``, ``MaxPool1d`` and so on, take no sparse tensor: they
    raise :class:`~layoutconv.errors.ArgumentTypeError`, which names the replacement.

    A batch norm over a padded tensor takes its statistics over the rows that have a cell.
    ``InstanceNorm1d`` to ``3d`` and ``GroupNorm`` take theirs over the rows of each image.

    >>> net = Sequential(torch.nn.Linear(1, 4), torch.nn.BatchNorm1d(4), torch.nn.ReLU())
    >>> x = SparseTensor.from_dense(torch.tensor([[[0.0], [3.0], [1.0]]]))
    >>> y = net(x)
    >>> y.coordinates is x.coordinates, y.features.shape
    (True, torch.Size([2, 4]))
    """

    __prepare_scriptable__ = refuse_scripting

    def forward(self, input: Any) -> Any:
        return in_turn(list(self._modules.values()), input)

    def __add__(self, other: torch.nn.Sequential) -> Sequential:
        return Sequential(*super().__add__(other))  # torch's would be one of torch

    def __mul__(self, other: int) -> Sequential:
        return Sequential(*super().__mul__(other))


class Features(torch.nn.Module):
    """A module applied to the features (rows, C) of a sparse tensor.

    >>> net = Features(torch.nn.Softmax(dim=1))
    >>> net(SparseTensor.from_dense(torch.tensor([[[1.0, 1.0]]]))).features
    tensor([[0.5000, 0.5000]])
    """

    __prepare_scriptable__ = refuse_scripting

    def __init__(self, module: torch.nn.Module) -> None:
        super().__init__()
        if not isinstance(module, torch.nn.Module):
            raise ArgumentTypeError("module", "a torch.nn.Module", type(module).__name__)
        self.module = module

    def forward(self, input: SparseTensor) -> SparseTensor:
        if type(self.module).forward.__module__ not in _OF_GRIDS and takes_features(self.module):
            return apply(self.module, input)
        return input.replace(self.module(input.features))


class Prune(torch.nn.Module):
    """:func:`layoutconv.sparse.prune` as a module: ``forward(input, mask)``.

    >>> x = SparseTensor.from_dense(torch.tensor([[[5.0], [3.0], [1.0]]]))
    >>> Prune()(x, x.features[:, 0] > 2).coords.tolist()
    [[0, 0], [0, 1]]
    """

    __prepare_scriptable__ = refuse_scripting

    def forward(self, input: SparseTensor, mask: Tensor) -> SparseTensor:
        return prune(input, mask)


def in_turn(modules: list[Any], input: Any) -> Any:
    """Apply modules to an input, one after another.

    In inference on a GPU a sparse convolution, a batch norm and an activation are one launch.

    >>> x = SparseTensor.from_dense(torch.tensor([[[-5.0]]]))
    >>> in_turn([torch.nn.ReLU(), torch.nn.Softmax(1)], x).features
    tensor([[1.]])
    """
    at = 0
    fuses = has_features(input) and may_fuse(input.features)
    while at < len(modules):
        module, at = modules[at], at + 1
        if fuses and isinstance(module, SparseConvolution):
            norm, last, count = norm_and_activation(modules, at)
            made = with_following(module, input, norm, last) if count else None
            if made is not None:
                input, at = made, at + count
                continue
            if norm is not None and norm.training:
                input = apply(module, input)
                made = trained_features(input, norm, last)
                if made is not None:
                    input, at = made, at + count
                continue
        input = apply(module, input)
    return input


def apply(module: Any, input: Any) -> Any:
    """Apply one module of a :class:`Sequential` to its input.

    >>> x = SparseTensor.from_dense(torch.tensor([[[-5.0]]]))
    >>> apply(torch.nn.ReLU(), x).features, apply(torch.nn.ReLU(), x.features)
    (tensor([[0.]]), tensor([[0.]]))
    """
    if type(module) is torch.nn.Identity and not is_hooked(module):
        return input  # takes the place of a folded module
    if not (isinstance(input, SparseTensor) and takes_features(module)):
        return module(input)
    if isinstance(module, torch.nn.SyncBatchNorm) and may_fuse(input.features, rows=0):
        made = trained_features(input, module, None)
        if made is not None:
            return made
    of_images = type(module).forward in FORWARDS and counts_images(module)
    if not of_images and not (input.coordinates.padded and mixes_rows(module)):
        return input.replace(module(input.features))
    if isinstance(module, torch.nn.Sequential) and (of_images or not is_hooked(module)):
        return input.replace(with_hooks(module, input.features, partial(_each, module, input)))
    return input.replace(per_image(module, input) if of_images else on_cells(module, input))


def _each(modules: Any, input: SparseTensor, features: Tensor) -> Tensor:
    """Return features after all modules of a ``torch.nn.Sequential``, one after another."""
    x = input.replace(features)
    for module in modules:
        x = apply(module, x)
    return x.features


def takes_features(module: Any) -> bool:
    """Return whether a module takes features.

    Raises :class:`~layoutconv.errors.ArgumentTypeError` for a torch module that takes a grid.

    >>> relu = torch.nn.ReLU()
    >>> takes_features(relu), takes_features(torch.nn.Sequential(relu, Prune()))
    (True, False)
    >>> takes_features(torch.nn.MaxPool3d(2))
    Traceback (most recent call last):
    layoutconv.errors.ArgumentTypeError: argument `input`: expected a dense tensor for torch's\
 MaxPool3d (features on voxels go into a pool of lc.nn, as SparseMaxPool3d), got a sparse tensor
    """
    forward = type(module).forward
    if forward is torch.nn.Sequential.forward:
        return all(map(takes_features, module))
    instead = _instead_of(module)
    if instead is not None:
        kind = type(module).__name__
        expected = f"a dense tensor for torch's {kind} (features on voxels go into {instead})"
        raise ArgumentTypeError("input", expected, "a sparse tensor")
    return _is_of_torch(forward)


def takes_no_rows(module: Any, C: int) -> bool:
    """Return whether a module is known to accept features without rows, (0, C).

    This holds for torch's modules on features, and for batch norms of this package, with C
    channels. It does not hold if ``forward`` was replaced, scripted or recorded.

    >>> takes_no_rows(torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.BatchNorm1d(8)), 4)
    True
    >>> takes_no_rows(torch.nn.Linear(8, 8), 4), takes_no_rows(torch.nn.Conv1d(4, 8, 1), 4)
    (False, False)
    """
    return _channels_of(module) in (None, C) and _takes_none(module)


def _takes_none(module: Any) -> bool:
    forward = getattr(type(module), "forward", None)  # scripted modules have none
    if forward is None or "forward" in module.__dict__:
        return False
    if forward is torch.nn.Sequential.forward:
        return all(map(_takes_none, module))
    if type(module) in trained_norm.NORMS or hasattr(module, "of_rows"):  # as over ranks
        return True
    return _instead_of(module) is None and _is_of_torch(forward)


# Attributes that tell a torch module's input channels, and the value that tells nothing.
_CHANNELS = {
    "in_features": 0, "num_features": 0, "num_channels": 0, "normalized_shape": (),
    "num_parameters": 1,
}  # fmt: skip
_RESHAPING = torch.nn.GLU, torch.nn.Unflatten


def _channels_of(module: torch.nn.Module) -> int | None:
    """Return the channels of a torch module, or of the first of a ``Sequential`` that has some."""
    for part in module.modules():
        if isinstance(part, _RESHAPING):
            return None
        for name, nothing in _CHANNELS.items():
            found: Any = getattr(part, name, nothing)
            if found != nothing:
                channels: int = found[-1] if isinstance(found, tuple) else found
                return channels
    return None


def _instead_of(module: Any) -> str | None:
    """Return the replacement of a torch module that takes a grid; None for other modules."""
    return _OF_GRIDS.get(type(module).forward.__module__) or _INSTEAD.get(type(module))


def _is_of_torch(forward: Any) -> bool:
    """Return whether a ``forward`` is torch's, or this package's replacement."""
    return (
        (forward.__module__ or "").startswith("torch.nn.modules.")  # torch.fx's are not
        or forward in FORWARDS
        or forward is BatchNorm1d.forward
    )
