"""Modules of sparse tensors, and containers that mix them with torch's."""

from __future__ import annotations

import time
from collections import OrderedDict
from typing import Any

import torch
from torch import nn

from ....errors import ArgumentError
from ....nn import trained_norm
from ....nn.containers import takes_no_rows
from ....nn.fused_norm import ACTIVATIONS, NORMS, may_fuse, runs_only_forward
from ....nn.scripting import refuse_scripting
from ..version import INTERFACE
from .blocks import run_fused
from .core import SparseConvTensor, check_input


class SparseModule(nn.Module):
    """A module to which :class:`SparseSequential` passes the sparse tensor, not its features.

    Its state dicts have version 2, which means that filters are (K, *taps, C).
    """

    __prepare_scriptable__ = refuse_scripting

    _version = 2
    _convolves = False

    def __init__(self, name: str | None = None) -> None:
        super().__init__()
        self.name = name
        self._sparse_unique_name = ""

    def _load_from_state_dict(
        self,
        state_dict: dict[str, Any],
        prefix: str,
        local_metadata: dict[str, Any],
        strict: bool,
        missing_keys: list[str],
        unexpected_keys: list[str],
        error_msgs: list[str],
    ) -> None:
        # Here and not in the convolutions: a project that knows the layout of its checkpoints
        # replaces this method, as mmdetection3d does, and then none is recognised twice.
        self._recognise_layout(state_dict, prefix, local_metadata.get("version"), error_msgs)
        super()._load_from_state_dict(
            state_dict, prefix, local_metadata, strict, missing_keys, unexpected_keys, error_msgs
        )

    def _recognise_layout(
        self, state_dict: dict[str, Any], prefix: str, version: Any, error_msgs: list[str]
    ) -> None:
        """Convert the filters in ``state_dict`` to today's layout, in convolutions."""


class SparseSequential(SparseModule):
    """Modules one after the other: sparse ones take the tensor, others its features.

    Modules are given in order, as one ``OrderedDict``, or by keyword. Unlike in spconv, features
    without rows, (0, C), also go through torch's modules and our batch norms, so that later modules
    get the channels and the dtype that they expect, and parameters get gradients of zero. A batch
    norm in training counts such a batch, but keeps its running statistics. Modules of users, which
    may refuse such features, are skipped as in spconv, and so are modules that then would get other
    channels.

    >>> from .conv import SubMConv3d
    >>> net = SparseSequential(SubMConv3d(4, 16, 3), nn.BatchNorm1d(16), nn.ReLU())
    >>> len(net), net[-1]
    (3, ReLU())
    >>> none = SparseConvTensor(torch.zeros(0, 4), torch.zeros(0, 4).int(), [9, 9, 9], 1)
    >>> SparseSequential(nn.Linear(4, 8), SubMConv3d(8, 16, 3))(none).features.shape
    torch.Size([0, 16])
    """

    def __init__(self, *args: Any, **kwargs: nn.Module) -> None:
        super().__init__()
        given = args[0] if len(args) == 1 and isinstance(args[0], OrderedDict) else None
        named = given.items() if given is not None else ((str(i), m) for i, m in enumerate(args))
        for name, module in named:
            self.add_module(name, module)
        for name, module in kwargs.items():
            if name in self._modules:
                raise ArgumentError(name, "a name that no other module has", module)
            self.add_module(name, module)

    def __getitem__(self, idx: int) -> Any:
        return list(self._modules.values())[idx]

    def __len__(self) -> int:
        return len(self._modules)

    def add(self, module: nn.Module, name: str | None = None) -> None:
        """Append a module, by default under its number."""
        name = str(len(self._modules)) if name is None else name
        if name in self._modules:
            raise KeyError(f"a module named {name!r} exists already")
        self.add_module(name, module)

    def forward(self, input: Any) -> Any:
        modules, at = list(self._modules.values()), 0
        # All modules' features are on one device, and what intercepts one intercepts all.
        writes = INTERFACE.is_1x
        fuses = isinstance(input, SparseConvTensor) and not writes and may_fuse(input._features)
        while at < len(modules):
            module: Any = modules[at]
            at += 1
            if not isinstance(input, SparseConvTensor):
                input = module(input)
            elif fuses and isinstance(module, SparseModule):
                input, more = run_fused(module, input, modules, at)
                at += more
            elif is_spconv_module(module):
                input = module(input)
            elif fuses and type(module) is nn.Identity and runs_only_forward(module):
                input = input.shadow_copy()
            elif input.indices.shape[0] > 0 or takes_no_rows(module, input.features.shape[1]):
                features = module(input.features)
                if writes:
                    input.features = features
                else:
                    input = input.replace_feature(features)
        return input


def _of_features(function: Any, input: Any) -> Any:
    if isinstance(input, SparseConvTensor):
        return input.replace_feature(function(input.features))
    return function(input)


class SparseBatchNorm(nn.BatchNorm1d):
    """:class:`torch.nn.BatchNorm1d` of features, or of a sparse tensor's.

    >>> import torch
    >>> x = SparseConvTensor.from_dense(torch.eye(3)[None, :, :, None])
    >>> SparseBatchNorm(1)(x).features.shape, SparseBatchNorm(1)(x.features).shape
    (torch.Size([3, 1]), torch.Size([3, 1]))
    """

    of_features = staticmethod(_of_features)

    def forward(self, input: Any) -> Any:
        return _of_features(super().forward, input)


class SparseSyncBatchNorm(nn.SyncBatchNorm):
    """:class:`torch.nn.SyncBatchNorm` of features, or of a sparse tensor's."""

    of_features = staticmethod(_of_features)

    def forward(self, input: Any) -> Any:
        return _of_features(super().forward, input)


NORMS.update((SparseBatchNorm, SparseSyncBatchNorm))  # as torch's, of features
trained_norm.NORMS.update((SparseBatchNorm, SparseSyncBatchNorm))


class SparseReLU(nn.ReLU):
    """:class:`torch.nn.ReLU` of features, or of a sparse tensor's."""

    def forward(self, input: Any) -> Any:
        return _of_features(super().forward, input)


ACTIVATIONS[SparseReLU] = "relu"


class SparseIdentity(nn.Identity):
    """:class:`torch.nn.Identity`."""


class ToDense(SparseModule):
    """``x.dense()``: (N, C, D, H, W)."""

    def forward(self, x: SparseConvTensor) -> Any:
        check_input(x, name="x")
        return x.dense()


class RemoveGrid(SparseModule):
    """Drop the tensor's ``grid``."""

    def forward(self, x: SparseConvTensor) -> SparseConvTensor:
        check_input(x, name="x")
        x.grid = None  # type: ignore[assignment]
        return x


class PrintTensorMeta(nn.Module):
    """Print the least, the greatest and the mean feature, and pass the tensor on."""

    def forward(self, x: Any) -> Any:
        features = x.features if isinstance(x, SparseConvTensor) else x
        print(features.min(), features.max(), features.mean())
        return x


class PrintCurrentTime(nn.Module):
    """Print the seconds since it was made, or reset, once a GPU is done; pass the tensor on."""

    def __init__(self) -> None:
        super().__init__()
        self.first_time = time.time()

    def forward(self, x: Any, msg: str = "", reset: bool = False) -> Any:
        if reset:
            self.first_time = time.time()
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        print(msg, time.time() - self.first_time)
        return x


_SPARSE = SparseModule, SparseBatchNorm, SparseReLU


def is_spconv_module(module: Any) -> bool:
    """Return whether a module takes sparse tensors.

    >>> is_spconv_module(ToDense()), is_spconv_module(nn.ReLU())
    (True, False)
    """
    return isinstance(module, _SPARSE)


def is_sparse_conv(module: Any) -> bool:
    """Return whether a module is a sparse convolution."""
    return isinstance(module, SparseModule) and module._convolves


def assign_name_for_sparse_modules(module: nn.Module) -> None:
    """Set the name of every sparse module to its name in ``module``.

    >>> net = SparseSequential(dense=ToDense())
    >>> assign_name_for_sparse_modules(net)
    >>> net[0]._sparse_unique_name
    'dense'
    """
    for name, part in module.named_modules():
        if isinstance(part, SparseModule):
            part._sparse_unique_name = name
