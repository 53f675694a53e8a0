"""Sparse convolutions with spconv's arguments, weights and keys."""

from __future__ import annotations

import warnings
from math import prod
from typing import Any

import torch
from torch import Tensor, nn

from ....errors import ArgumentError
from ....nn.fused_norm import normalised
from ....nn.modules import weight_and_bias
from ....nn.sparse import convolved
from ....nn.trained_layer import trained_layer
from ....sparse import KernelMap, SparseTensor
from ....tensors.epilogue_in_torch import activate
from ...tensor_arguments import check_dtype
from ...whole_numbers import whole, whole_per_mode
from .. import constants
from ..absent import explain
from ..core import Activation, ConvAlgo
from ..version import INTERFACE
from .core import SparseConvTensor, check_input
from .indice_data import Geometry
from .layer_maps import map_of_layer
from .layers import GeometricLayer, check_rows, features_added
from .weight_layouts import LAYOUTS, fits_some, layouts_of, to_krsc

_ACTIVATIONS = {"None_": None, "ReLU": "relu", "Sigmoid": "sigmoid", "LeakyReLU": "leaky_relu"}


class SparseConvolution(GeometricLayer):
    """The base of all sparse convolutions, over ``ndim`` spatial modes.

    Args:
        in_channels, out_channels, groups, bias: C, K, and as for ``torch.nn.Conv3d``.
        kernel_size, stride, padding, dilation, output_padding: a number, or one per spatial mode.
        subm: submanifold: outputs are the cells of the input, row for row, for any ``padding`` and
            ``stride``.
        transposed: outputs are all cells that the input feeds.
        inverse: outputs are the input cells of the layer with the same ``indice_key``.
        indice_key: layers with one key share a kernel map: submanifold layers of the same sizes at
            the same cells, or a strided layer and the inverse layers that reverse it.
        act_type, act_alpha: the activation, an :class:`~layoutconv.compat.spconv.core.
            Activation` or one of cumm's, and the slope of ``LeakyReLU``; differentiable.
        record_voxel_count: keep the largest number of rows of a result in a buffer.
        algo, fp32_accum, act_beta, large_kernel_fast_algo, name: accepted, without effect; sums are
            in fp32.
        device, dtype: of the parameters.

    ``weight`` is (K, *kernel_size, C / groups), ``bias`` (K,), both uniform in ``+-1 / sqrt(C /
    groups * taps)`` at first. State dicts of older layouts are recognised as :mod:`.weights` says.

    Raises :class:`~layoutconv.errors.ArgumentError` that names the argument.

    >>> cells = torch.tensor([[0, 0, 1], [0, 0, 2], [0, 3, 0]], dtype=torch.int32)
    >>> x = SparseConvTensor(torch.ones(3, 4), cells, [4, 4], batch_size=1)
    >>> y = SparseConvolution(2, 4, 8, 3, stride=2, padding=1, indice_key="down")(x)
    >>> z = SparseConvolution(2, 8, 4, 3, inverse=True, indice_key="down")(y)
    >>> y.spatial_shape, y.features.shape, z.indices is x.indices
    ([2, 2], torch.Size([3, 8]), True)
    """

    weight: nn.Parameter
    bias: nn.Parameter | None
    _convolves = True

    def __init__(
        self,
        ndim: int,
        in_channels: int,
        out_channels: int,
        kernel_size: Any = 3,
        stride: Any = 1,
        padding: Any = 0,
        dilation: Any = 1,
        groups: int = 1,
        bias: bool = True,
        subm: bool = False,
        output_padding: Any = 0,
        transposed: bool = False,
        inverse: bool = False,
        indice_key: Any = None,
        algo: ConvAlgo | None = None,
        fp32_accum: bool | None = None,
        record_voxel_count: bool = False,
        act_type: Any = Activation.None_,
        act_alpha: float = 0,
        act_beta: float = 0,
        large_kernel_fast_algo: bool = False,
        name: str | None = None,
        device: Any = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        ndim = whole("ndim", ndim, 1)
        names = "kernel_size", "stride", "padding", "dilation", "output_padding"
        given = zip(names, (kernel_size, stride, padding, dilation, output_padding), strict=True)
        ksize, steps, near, apart, more = (whole_per_mode(n, v, ndim) for n, v in given)
        geometry = Geometry(ksize, steps, near, apart, more, subm, transposed)
        if subm and set(geometry.stride) != {1}:
            warnings.warn("a submanifold convolution ignores its `stride`", stacklevel=3)
        channels = ("in_channels", in_channels), ("out_channels", out_channels), ("groups", groups)
        in_channels, out_channels, groups = (whole(n, v, 1) for n, v in channels)
        if in_channels % groups or out_channels % groups:
            expected = f"a divisor of {in_channels} and {out_channels} channels"
            raise ArgumentError("groups", expected, groups)
        limit = 128 if large_kernel_fast_algo else 32
        counts = record_voxel_count, not subm and not inverse
        super().__init__(ndim, geometry, indice_key, algo, limit, *counts, name, device)
        self.in_channels, self.out_channels, self.groups = in_channels, out_channels, groups
        self.transposed, self.inverse = transposed, inverse
        self.output_padding = more
        self.fp32_accum = fp32_accum
        self.act_type, self.act_alpha, self.act_beta = act_type, act_alpha, act_beta
        self._activation = _activation(act_type)
        self.conv1x1 = prod(ksize) == 1 and (subm or set(steps) == {1})
        self.is_matrix = self.conv1x1 and groups == 1
        # Then cells stay as they are, and no kernel map is needed, unless the grid changes.
        self._stays = subm or inverse or not (any(near) or any(more))
        shape = self.weight_shape = [out_channels, *geometry.ksize, in_channels // groups]
        self.weight = nn.Parameter(torch.empty(shape, device=device, dtype=dtype))
        if bias:
            self.bias = nn.Parameter(torch.empty(out_channels, device=device, dtype=dtype))
        else:
            self.register_parameter("bias", None)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw new random weights and biases."""
        bound = max(1, prod(self.weight_shape[1:])) ** -0.5
        nn.init.uniform_(self.weight, -bound, bound)
        if self.bias is not None:
            nn.init.uniform_(self.bias, -bound, bound)

    @property
    def activation(self) -> str | None:
        """The name of the activation in :mod:`layoutconv.nn`."""
        return self._activation

    @activation.setter
    def activation(self, name: str | None) -> None:
        kinds = {own: getattr(Activation, theirs) for theirs, own in _ACTIVATIONS.items()}
        self.act_type, self._activation = kinds.get(name, name), name

    @property
    def slope(self) -> float:
        """The slope of ``leaky_relu`` below zero."""
        return self.act_alpha

    @slope.setter
    def slope(self, slope: float) -> None:
        self.act_alpha = slope

    def is_inverseable(self) -> bool:
        """Return whether an inverse convolution can go back through this layer."""
        return self.indice_key is not None and not self.subm

    def forward(
        self, input: SparseConvTensor, add_input: SparseConvTensor | None = None
    ) -> SparseConvTensor:
        features = self._features_of(input)
        weight, bias = weight_and_bias(self)
        past = None if add_input is None else features_added(add_input)
        if self.is_matrix:
            matrix = weight.reshape(self.in_channels, self.out_channels).T
            if self._stays:
                if features.dtype is not weight.dtype:
                    check_dtype(features, weight)
                y = nn.functional.linear(features, matrix, bias)
                check_rows(input, y, past)
                if past is not None:
                    y = y + past
                if self._activation is not None:
                    y = activate(y, self._activation, self.act_alpha)
                return input.replace_feature(y)
            weight = matrix.reshape(self.weight_shape)
        found, known, version = self._map_of(input)
        if self.subm and INTERFACE.is_1x:
            weight = weight.flatten(1, -2)[:, : prod(found.taps)].unflatten(1, found.taps)
        ending = bias, None, past, self._activation, self.act_alpha, None
        y = convolved(features, weight, found, self.groups, ending)
        if self.record_voxel_count:
            self._count(found.outputs.rows)
        return input.on(y, found.outputs, known, version)

    def with_following(
        self, input: SparseConvTensor, norm: Any, last: Any, past: Tensor | None = None
    ) -> SparseConvTensor | None:
        """Run ``last(norm(self(input)) + past)``, each of which may be None, as one launch; with a
        norm in training, as one function that autograd records.

        Returns None, without an effect, if it cannot be fused: then the caller runs module after
        module, with the same result up to rounding. :func:`~layoutconv.nn.fused_norm.may_fuse` must
        hold for the features of ``input``.
        """
        own = self.__dict__
        # Inlined ``is_bare``: calling it takes as long as the rest.
        if own["_forward_hooks"] or own["_forward_pre_hooks"] or "forward" in own:
            return None
        if type(self).forward is not SparseConvolution.forward:
            return None
        if self.is_matrix or self._activation is not None:
            return None
        features = self._features_of(input)
        found, known, version = map_of_layer(self, input)
        if features.shape[0] != found.inputs.cells.shape[0]:
            SparseTensor(features, found.inputs)  # raises if something does not fit
        after = trained_layer if norm is not None and norm.training else normalised
        y = after(self, features, found, norm, last, past)
        if y is None:
            return None
        if self.record_voxel_count:
            self._count(found.outputs.rows)
        return input.on(y, found.outputs, known, version)

    def _features_of(self, input: SparseConvTensor) -> Tensor:
        """Return the features of a tensor if this layer takes them; else raise."""
        if not isinstance(input, SparseConvTensor) or len(input.spatial_shape) != self.ndim:
            check_input(input, self.ndim)
        features, shape = input._features, input._features.shape
        if len(shape) != 2 or shape[1] != self.in_channels:
            got = f"features {tuple(shape)}"
            raise ArgumentError("input", f"{self.in_channels} channels", got)
        return features

    def _map_of(self, input: SparseConvTensor) -> tuple[KernelMap, dict[Any, Any], int]:
        """Return the kernel map, all maps known then, and the version of its output cells."""
        made = map_of_layer(self, input)
        rows, own = input._features.shape[0], made[0].inputs.cells.shape[0]
        # A tracer cannot compare unknown numbers: this raises if something does not fit.
        if torch.compiler.is_dynamo_compiling() or type(own) is not int or rows != own:
            SparseTensor(input._features, made[0].inputs)
        return made

    def extra_repr(self) -> str:
        text = f"{self.in_channels}, {self.out_channels}, {self._sizes()}"
        if any(self.output_padding):
            text += f", output_padding={self.output_padding}"
        if self.groups != 1:
            text += f", groups={self.groups}"
        if self.bias is None:
            text += ", bias=False"
        return text if self._activation is None else f"{text}, act={self.act_type}"

    def _recognise_layout(
        self, state_dict: dict[str, Any], prefix: str, version: Any, error_msgs: list[str]
    ) -> None:
        count = self.get_max_num_voxels()
        if count is not None:  # for checkpoints that were saved without one
            state_dict.setdefault(prefix + "max_num_voxels_during_training", count)
        key = prefix + "weight"
        stored = state_dict.get(key)
        if stored is None or version == 2:
            return
        told = constants.SAVED_WEIGHT_LAYOUT
        if told and told not in LAYOUTS:
            expected = f"'' or one of {', '.join(LAYOUTS)}"
            raise ArgumentError("SAVED_WEIGHT_LAYOUT", expected, repr(told))
        if self.is_matrix and fits_some(stored.shape, self.weight.shape):
            state_dict[key] = stored.reshape(self.weight.shape)  # the same order in all of them
            return
        try:
            layouts = [told] if told else layouts_of([(stored.shape, self.weight.shape)])
        except ArgumentError:
            return  # torch reports the shapes that do not fit
        if layouts is None:
            error_msgs.append(
                f"{key} of shape {tuple(stored.shape)} may be of spconv 1.x, (*taps, C, K), or of "
                f"2.0, (*taps, K, C): convert_state_dict(net, state_dict), of "
                f"layoutconv.compat.spconv.pytorch.weights, sees it by the other filters."
            )
        elif layouts[0] != "KRSC" and stored.dim() == self.ndim + 2:
            state_dict[key] = to_krsc(stored, layouts[0])


SparseConvolutionBase = SparseConvolution  # in spconv, a base class of it

__getattr__ = explain(__name__)


def _activation(act_type: Any) -> str | None:
    name = "None_" if act_type is None else getattr(act_type, "name", act_type)
    if name not in _ACTIVATIONS:
        raise ArgumentError("act_type", f"one of {', '.join(_ACTIVATIONS)}", act_type)
    return _ACTIVATIONS[name]


class _SubMConv(SparseConvolution):
    _rank: int

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: Any,
        stride: Any = 1,
        padding: Any = 0,
        dilation: Any = 1,
        groups: int = 1,
        bias: bool = True,
        indice_key: Any = None,
        algo: ConvAlgo | None = None,
        fp32_accum: bool | None = None,
        large_kernel_fast_algo: bool = False,
        name: str | None = None,
    ) -> None:
        sizes = kernel_size, stride, padding, dilation, groups, bias
        super().__init__(
            self._rank, in_channels, out_channels, *sizes, subm=True, indice_key=indice_key,
            algo=algo, fp32_accum=fp32_accum, large_kernel_fast_algo=large_kernel_fast_algo,
            name=name,
        )  # fmt: skip


class _SparseConv(SparseConvolution):
    _rank: int
    _transposed = False

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: Any,
        stride: Any = 1,
        padding: Any = 0,
        dilation: Any = 1,
        groups: int = 1,
        bias: bool = True,
        indice_key: Any = None,
        algo: ConvAlgo | None = None,
        fp32_accum: bool | None = None,
        record_voxel_count: bool = False,
        large_kernel_fast_algo: bool = False,
        name: str | None = None,
    ) -> None:
        sizes = kernel_size, stride, padding, dilation, groups, bias
        super().__init__(
            self._rank, in_channels, out_channels, *sizes, transposed=self._transposed,
            indice_key=indice_key, algo=algo, fp32_accum=fp32_accum,
            record_voxel_count=record_voxel_count, large_kernel_fast_algo=large_kernel_fast_algo,
            name=name,
        )  # fmt: skip


class _SparseConvTranspose(_SparseConv):
    _transposed = True


class _SparseInverseConv(SparseConvolution):
    _rank: int

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: Any,
        indice_key: Any,
        bias: bool = True,
        algo: ConvAlgo | None = None,
        fp32_accum: bool | None = None,
        large_kernel_fast_algo: bool = False,
        name: str | None = None,
    ) -> None:
        super().__init__(
            self._rank, in_channels, out_channels, kernel_size, bias=bias, inverse=True,
            indice_key=indice_key, algo=algo, fp32_accum=fp32_accum,
            large_kernel_fast_algo=large_kernel_fast_algo, name=name,
        )  # fmt: skip


class SubMConv1d(_SubMConv):
    """:class:`SubMConv3d` over one spatial mode."""

    _rank = 1


class SubMConv2d(_SubMConv):
    """:class:`SubMConv3d` over two spatial modes."""

    _rank = 2


class SubMConv3d(_SubMConv):
    """Submanifold convolution: outputs are the cells of the input, row for row.

    Arguments as for :class:`SparseConvolution`. An even filter reaches one cell further down than
    up.

    >>> cells = torch.tensor([[0, 0, 1, 1], [0, 0, 0, 1]], dtype=torch.int32)
    >>> x = SparseConvTensor(torch.ones(2, 4), cells, [2, 2, 2], batch_size=1)
    >>> SubMConv3d(4, 8, 3, padding=1, indice_key="subm1")(x).indices is x.indices
    True
    """

    _rank = 3


class SubMConv4d(_SubMConv):
    """:class:`SubMConv3d` over four spatial modes."""

    _rank = 4


class SparseConv1d(_SparseConv):
    """:class:`SparseConv3d` over one spatial mode."""

    _rank = 1


class SparseConv2d(_SparseConv):
    """:class:`SparseConv3d` over two spatial modes."""

    _rank = 2


class SparseConv3d(_SparseConv):
    """Convolution whose outputs are all cells that some input reaches, in lexicographic order.

    Arguments as for :class:`SparseConvolution`; the grid is a dense convolution's.

    >>> cells = torch.tensor([[0, 0, 1, 1], [0, 0, 0, 1]], dtype=torch.int32)
    >>> x = SparseConvTensor(torch.ones(2, 4), cells, [2, 2, 2], batch_size=1)
    >>> SparseConv3d(4, 8, 2, stride=2)(x).indices
    tensor([[0, 0, 0, 0]], dtype=torch.int32)
    """

    _rank = 3


class SparseConv4d(_SparseConv):
    """:class:`SparseConv3d` over four spatial modes."""

    _rank = 4


class SparseConvTranspose1d(_SparseConvTranspose):
    """:class:`SparseConvTranspose3d` over one spatial mode."""

    _rank = 1


class SparseConvTranspose2d(_SparseConvTranspose):
    """:class:`SparseConvTranspose3d` over two spatial modes."""

    _rank = 2


class SparseConvTranspose3d(_SparseConvTranspose):
    """Transposed convolution, whose outputs are all cells that some input feeds.

    >>> x = SparseConvTensor(torch.ones(1, 4), torch.zeros(1, 4).int(), [1, 1, 1], batch_size=1)
    >>> y = SparseConvTranspose3d(4, 8, 2, stride=2)(x)
    >>> y.spatial_shape, len(y.indices)
    ([2, 2, 2], 8)
    """

    _rank = 3


class SparseConvTranspose4d(_SparseConvTranspose):
    """:class:`SparseConvTranspose3d` over four spatial modes."""

    _rank = 4


class SparseInverseConv1d(_SparseInverseConv):
    """:class:`SparseInverseConv3d` over one spatial mode."""

    _rank = 1


class SparseInverseConv2d(_SparseInverseConv):
    """:class:`SparseInverseConv3d` over two spatial modes."""

    _rank = 2


class SparseInverseConv3d(_SparseInverseConv):
    """Inverse of the strided convolution, or pooling, with the same ``indice_key``.

    >>> x = SparseConvTensor(torch.ones(1, 4), torch.zeros(1, 4).int(), [2, 2, 2], batch_size=1)
    >>> y = SparseConv3d(4, 8, 2, stride=2, indice_key="down1")(x)
    >>> SparseInverseConv3d(8, 4, 2, indice_key="down1")(y).indices is x.indices
    True
    """

    _rank = 3


class SparseInverseConv4d(_SparseInverseConv):
    """:class:`SparseInverseConv3d` over four spatial modes."""

    _rank = 4
