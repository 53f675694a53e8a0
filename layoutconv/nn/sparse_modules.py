"""Modules of sparse convolutions: torch's argument names, SparseTensors in and out.

A weight is (K, *taps, C / groups), in this memory order; a bias is (K,). ``activation`` and
``slope`` are fused into the convolution and are not in the ``state_dict``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor

from ..conv.problem import Ints, Padding, padding_pairs
from ..errors import ArgumentError, ArgumentTypeError, truth_of
from ..sparse import Coordinates, KernelMap, SparseTensor
from ..sparse.maps.taps import Taps, per_axis
from . import sparse
from .arguments import check_activation
from .modules import weight_and_bias
from .scripting import refuse_scripting
from .sparse_checks import check_count, device_of, dtype_of


class SparseConvolution(torch.nn.Module):
    """The common base of sparse convolutions; subclasses set their spatial ``rank``."""

    rank: ClassVar[int]

    in_channels: int
    out_channels: int
    kernel_size: tuple[int, ...]
    weight: torch.nn.Parameter
    bias: torch.nn.Parameter | None
    __prepare_scriptable__ = refuse_scripting

    def _hold(
        self,
        in_channels: int,
        out_channels: int,
        taps: tuple[int, ...],
        groups: int,
        bias: bool,
        device: Any,
        dtype: Any,
        activation: str | None,
        slope: float,
    ) -> None:
        torch.nn.Module.__init__(self)
        in_channels = check_count("in_channels", in_channels)
        out_channels, groups = (
            check_count("out_channels", out_channels),
            check_count("groups", groups),
        )
        for name, number in (("in_channels", in_channels), ("out_channels", out_channels)):
            if number % groups:
                raise ArgumentError(name, f"a multiple of groups = {groups}", number)
        self.in_channels, self.out_channels, self.groups = in_channels, out_channels, groups
        self.kernel_size, self.slope = taps, slope
        shape, has_bias = (out_channels, *taps, in_channels // groups), truth_of("bias", bias)
        kinds: dict[str, Any] = {"device": device_of(device), "dtype": dtype_of(dtype)}
        self.weight = torch.nn.Parameter(torch.empty(shape, **kinds))
        column = torch.nn.Parameter(torch.empty(out_channels, **kinds)) if has_bias else None
        self.register_parameter("bias", column)
        check_activation(activation, slope, self.weight)
        self.activation = activation
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Initialise like torch: uniform, by the most numbers in a sum, C / groups * taps."""
        # torch, too, counts the modes after K, in whatever order: here (K, *taps, C / groups).
        torch.nn.init.kaiming_uniform_(self.weight, a=math.sqrt(5))
        if self.bias is not None:
            bound = 1 / math.sqrt(self.weight[0].numel())
            torch.nn.init.uniform_(self.bias, -bound, bound)

    def extra_repr(self) -> str:
        text = f"{self.in_channels}, {self.out_channels}, kernel_size={self.kernel_size}"
        for name, usual in self._shown().items():
            value = getattr(self, name)
            text += "" if value == usual else f", {name}={value}"
        text += "" if self.groups == 1 else f", groups={self.groups}"
        text += "" if self.bias is not None else ", bias=False"
        text += "" if self.activation is None else f", activation={self.activation}"
        return text + f", slope={self.slope}" if self.activation == "leaky_relu" else text

    def _shown(self) -> dict[str, Any]:
        """Return the attributes that the repr shows unless they have these values."""
        return {}


class SubmOf(SparseConvolution):
    """The base of submanifold convolutions."""

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: Ints | None = None,
        dilation: Ints = 1,
        groups: int = 1,
        bias: bool = True,
        device: Any = None,
        dtype: Any = None,
        *,
        offsets: Sequence[Sequence[int]] | None = None,
        activation: str | None = None,
        slope: float = 0.01,
    ) -> None:
        if (kernel_size is None) is (offsets is None):
            got = "both" if offsets is not None else "neither"
            raise ArgumentError("kernel_size", "either `kernel_size` or `offsets`", got)
        if offsets is None:
            assert kernel_size is not None
            # Check first: a lookup of (True, 2.0) would find the cached taps of (1, 2).
            sizes = per_axis("kernel_size", kernel_size, self.rank)
            taps = Taps.centred(self.rank, sizes, dilation)
        else:
            taps = Taps.centred(self.rank, offsets=offsets)
            if set(per_axis("dilation", dilation, self.rank)) != {1}:
                raise ArgumentError(
                    "dilation", "1 beside `offsets`, which say where the taps are", dilation
                )
        options = bias, device, dtype, activation, slope
        self._hold(in_channels, out_channels, taps.extents, groups, *options)
        self.dilation = per_axis("dilation", dilation, self.rank)
        self.offsets = None if offsets is None else taps.offsets

    def forward(
        self,
        input: SparseTensor,
        *,
        kernel_map: KernelMap | None = None,
        residual: SparseTensor | Tensor | None = None,
    ) -> SparseTensor:
        """Convolve; arguments are those of :func:`layoutconv.subm_conv`."""
        _check_input(input, self)
        given = kernel_map is not None  # the map defines the taps
        return sparse.subm_conv(
            input, *weight_and_bias(self), 1 if given else self.dilation, self.groups,
            offsets=None if given else self.offsets, kernel_map=kernel_map,
            activation=self.activation, slope=self.slope, residual=residual,
        )  # fmt: skip

    def _shown(self) -> dict[str, Any]:
        return {"dilation": (1,) * self.rank, "offsets": None}


class _Strided(SparseConvolution):
    """The base of convolutions that create cells."""

    _names: ClassVar[tuple[str, ...]] = ("stride", "padding", "dilation")

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: Ints,
        stride: Ints = 1,
        padding: Padding = 0,
        dilation: Ints = 1,
        groups: int = 1,
        bias: bool = True,
        device: Any = None,
        dtype: Any = None,
        *,
        activation: str | None = None,
        slope: float = 0.01,
    ) -> None:
        sizes = per_axis("kernel_size", kernel_size, self.rank)
        steps = per_axis("stride", stride, self.rank)
        taps = Taps.strided(self.rank, sizes, steps, padding, dilation)
        options = bias, device, dtype, activation, slope
        self._hold(in_channels, out_channels, taps.extents, groups, *options)
        self.stride, self.padding = taps.stride, _padding(padding, self.rank)
        self.dilation = per_axis("dilation", dilation, self.rank)

    def _sizes(self, kernel_map: KernelMap | None) -> dict[str, Any]:
        """Return a function's arguments beside the weight; a given map replaces them."""
        return {name: getattr(self, name) for name in self._names} if kernel_map is None else {}

    def _shown(self) -> dict[str, Any]:
        return {"stride": None, "padding": (0,) * self.rank, "dilation": (1,) * self.rank}


class ConvOf(_Strided):
    """The base of convolutions whose output cells are all that an input reaches."""

    def forward(
        self,
        input: SparseTensor,
        *,
        kernel_map: KernelMap | None = None,
        outputs: Coordinates | None = None,
        capacity: int | None = None,
        residual: SparseTensor | Tensor | None = None,
    ) -> SparseTensor:
        """Convolve; arguments are those of :func:`layoutconv.sparse_conv`."""
        _check_input(input, self)
        return sparse.sparse_conv(
            input, *weight_and_bias(self), groups=self.groups, **self._sizes(kernel_map),
            kernel_map=kernel_map, outputs=outputs, capacity=capacity,
            activation=self.activation, slope=self.slope, residual=residual,
        )  # fmt: skip


class ConvTransposeOf(_Strided):
    """The base of transposed convolutions."""

    _names = (*_Strided._names, "output_padding")

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: Ints,
        stride: Ints = 1,
        padding: Padding = 0,
        output_padding: Ints = 0,
        groups: int = 1,
        bias: bool = True,
        dilation: Ints = 1,
        device: Any = None,
        dtype: Any = None,
        *,
        activation: str | None = None,
        slope: float = 0.01,
    ) -> None:
        super().__init__(
            in_channels, out_channels, kernel_size, stride, padding, dilation, groups, bias,
            device, dtype, activation=activation, slope=slope,
        )  # fmt: skip
        self.output_padding = per_axis("output_padding", output_padding, self.rank, least=0)

    def forward(
        self,
        input: SparseTensor,
        *,
        kernel_map: KernelMap | None = None,
        outputs: Coordinates | None = None,
        capacity: int | None = None,
        residual: SparseTensor | Tensor | None = None,
    ) -> SparseTensor:
        """Convolve; arguments are those of :func:`layoutconv.sparse_conv_transpose`."""
        _check_input(input, self)
        return sparse.sparse_conv_transpose(
            input, *weight_and_bias(self), groups=self.groups, **self._sizes(kernel_map),
            kernel_map=kernel_map, outputs=outputs, capacity=capacity,
            activation=self.activation, slope=self.slope, residual=residual,
        )  # fmt: skip

    def _shown(self) -> dict[str, Any]:
        return {**super()._shown(), "output_padding": (0,) * self.rank}


class InverseOf(SparseConvolution):
    """The base of inverse convolutions."""

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: Ints,
        groups: int = 1,
        bias: bool = True,
        device: Any = None,
        dtype: Any = None,
        *,
        activation: str | None = None,
        slope: float = 0.01,
    ) -> None:
        taps = Taps.centred(self.rank, per_axis("kernel_size", kernel_size, self.rank))
        options = bias, device, dtype, activation, slope
        self._hold(in_channels, out_channels, taps.extents, groups, *options)

    def forward(
        self,
        input: SparseTensor,
        *,
        kernel_map: KernelMap | None = None,
        residual: SparseTensor | Tensor | None = None,
    ) -> SparseTensor:
        """Convolve; arguments are those of :func:`layoutconv.sparse_inverse_conv`."""
        _check_input(input, self)
        return sparse.sparse_inverse_conv(
            input, *weight_and_bias(self), self.groups, kernel_map=kernel_map,
            activation=self.activation, slope=self.slope, residual=residual,
        )  # fmt: skip


def _padding(padding: Padding, rank: int) -> tuple[Any, ...]:
    """Return padding like torch's, one number per spatial mode, or pairs if near and far differ."""
    pairs = padding_pairs(padding, rank)
    return tuple(near for near, _ in pairs) if all(n == f for n, f in pairs) else pairs


def _check_input(input: SparseTensor, module: SparseConvolution) -> None:
    """Check spatial modes and channels; errors name the module, not the shape of its weight."""
    coordinates = getattr(input, "coordinates", None)
    if not isinstance(coordinates, Coordinates):
        raise ArgumentTypeError("input", "a SparseTensor", type(input).__name__)
    if len(coordinates.spatial_shape) != module.rank:
        expected = f"{module.rank} spatial modes, as {type(module).__name__} has"
        raise ArgumentError("input", expected, f"spatial_shape {coordinates.spatial_shape}")
    shape = input.features.shape
    if shape[1] != module.in_channels:
        expected = f"{module.in_channels} channels, as {type(module).__name__} has"
        raise ArgumentError("input", expected, f"features {tuple(shape)}")


class SubmConv1d(SubmOf):
    """Submanifold convolution over one spatial mode: :func:`layoutconv.subm_conv` as a module.

    See :class:`SubmConv3d`.
    """

    rank = 1


class SubmConv2d(SubmOf):
    """Submanifold convolution over two spatial modes: :func:`layoutconv.subm_conv` as a module.

    See :class:`SubmConv3d`.
    """

    rank = 2


class SubmConv3d(SubmOf):
    """Submanifold convolution over three spatial modes: :func:`layoutconv.subm_conv` as a module.

    Args:
        in_channels, out_channels: C and K.
        kernel_size, dilation: an int, or one per spatial mode.
        groups: divides C and K.
        bias: whether to add a bias.
        device, dtype: of the parameters.
        offsets: a cell for each tap, instead of a kernel size and a dilation: ``weight`` is then
            (K, taps, C / groups).
        activation, slope: the epilogue.

    ``forward(input, kernel_map=None, residual=None)`` takes a tensor of C channels and returns
    one of K channels on its coordinates.

    Raises :class:`~layoutconv.errors.ArgumentError` that names the argument.

    >>> net = SubmConv3d(4, 8, 3, bias=False, activation="relu")
    >>> net
    SubmConv3d(4, 8, kernel_size=(3, 3, 3), bias=False, activation=relu)
    >>> net.weight.shape
    torch.Size([8, 3, 3, 3, 4])
    """

    rank = 3


class SubmConv4d(SubmOf):
    """Submanifold convolution over four spatial modes: :func:`layoutconv.subm_conv` as a module.

    See :class:`SubmConv3d`.
    """

    rank = 4


class SparseConv1d(ConvOf):
    """Sparse convolution over one spatial mode: :func:`layoutconv.sparse_conv` as a module.

    See :class:`SparseConv3d`.
    """

    rank = 1


class SparseConv2d(ConvOf):
    """Sparse convolution over two spatial modes: :func:`layoutconv.sparse_conv` as a module.

    See :class:`SparseConv3d`.
    """

    rank = 2


class SparseConv3d(ConvOf):
    """Sparse convolution over three spatial modes: :func:`layoutconv.sparse_conv` as a module.

    Arguments are those of ``torch.nn.Conv3d``, without ``padding_mode``. Its ``forward(input,
    kernel_map=None, outputs=None, capacity=None, residual=None)`` creates the cells that an input
    reaches, in ``capacity`` rows if given, or computes the cells of ``outputs``.

    >>> from layoutconv.sparse import SparseTensor
    >>> down = SparseConv3d(1, 8, 3, stride=2, padding=1)
    >>> down
    SparseConv3d(1, 8, kernel_size=(3, 3, 3), stride=(2, 2, 2), padding=(1, 1, 1))
    >>> down(SparseTensor.from_dense(torch.ones(1, 4, 4, 4, 1))).spatial_shape
    (2, 2, 2)
    """

    rank = 3


class SparseConv4d(ConvOf):
    """Sparse convolution over four spatial modes: :func:`layoutconv.sparse_conv` as a module.

    See :class:`SparseConv3d`.
    """

    rank = 4


class SparseConvTranspose1d(ConvTransposeOf):
    """Transposed convolution over one spatial mode: :func:`layoutconv.sparse_conv_transpose`.

    See :class:`SparseConvTranspose3d`.
    """

    rank = 1


class SparseConvTranspose2d(ConvTransposeOf):
    """Transposed convolution over two spatial modes: :func:`layoutconv.sparse_conv_transpose`.

    See :class:`SparseConvTranspose3d`.
    """

    rank = 2


class SparseConvTranspose3d(ConvTransposeOf):
    """Transposed convolution over three spatial modes: :func:`layoutconv.sparse_conv_transpose`.

    Arguments are those of ``torch.nn.ConvTranspose3d``, in its order, without ``padding_mode``; but
    the weight is ``(K, *taps, C / groups)`` for K output channels. It is generative: its cells are
    all that an input feeds, unless ``outputs`` names them.

    >>> from layoutconv.sparse import SparseTensor
    >>> up = SparseConvTranspose3d(2, 8, 2, stride=2)
    >>> x = SparseTensor.from_dense(torch.ones(1, 1, 2, 2, 2))
    >>> len(x), len(up(x)), up(x).spatial_shape
    (4, 32, (2, 4, 4))
    """

    rank = 3


class SparseConvTranspose4d(ConvTransposeOf):
    """Transposed convolution over four spatial modes: :func:`layoutconv.sparse_conv_transpose`.

    See :class:`SparseConvTranspose3d`.
    """

    rank = 4


class SparseInverseConv1d(InverseOf):
    """Inverse convolution over one spatial mode: :func:`layoutconv.sparse_inverse_conv`.

    See :class:`SparseInverseConv3d`.
    """

    rank = 1


class SparseInverseConv2d(InverseOf):
    """Inverse convolution over two spatial modes: :func:`layoutconv.sparse_inverse_conv`.

    See :class:`SparseInverseConv3d`.
    """

    rank = 2


class SparseInverseConv3d(InverseOf):
    """Inverse convolution over three spatial modes: :func:`layoutconv.sparse_inverse_conv`.

    Its ``forward(input, kernel_map=None, residual=None)`` returns to the input cells of the
    convolution with the map ``kernel_map``: by default the one that made ``input``'s cells.

    >>> from layoutconv.sparse import SparseTensor
    >>> x = SparseTensor.from_dense(torch.ones(1, 4, 4, 4, 1))
    >>> down, up = SparseConv3d(1, 8, 2, stride=2), SparseInverseConv3d(8, 1, 2)
    >>> up(down(x)).coordinates is x.coordinates
    True
    """

    rank = 3


class SparseInverseConv4d(InverseOf):
    """Inverse convolution over four spatial modes: :func:`layoutconv.sparse_inverse_conv`.

    See :class:`SparseInverseConv3d`.
    """

    rank = 4
