"""Arguments of calls and layers that are of no use: an error names each, and none is Python's."""

from __future__ import annotations

import inspect
from typing import Any

import numpy as np
import pytest
import torch

import layoutconv as lc
from layoutconv.conv import ConvProblem, fprop_view
from layoutconv.errors import ArgumentError, ArgumentTypeError

from ..odd_arguments import refusals

X, W = torch.randn(1, 4, 6, 6), torch.randn(4, 4, 3, 3)
CELLS = torch.tensor([[0, 0, 1, 1], [0, 1, 1, 2], [0, 3, 3, 3]], dtype=torch.int32)
CLOUD = lc.SparseTensor(torch.randn(3, 4), CELLS, (4, 4, 4), batch_size=1)
FILTER = torch.randn(4, 3, 3, 3, 4)
SUMS = lc.reduction_view((4, 8), 0)
ENDING = {"bias": None, "activation": None, "slope": 0.01, "scale": None, "residual": None}
CALLS: dict[str, tuple[Any, dict[str, Any]]] = {
    "execute": (
        lc.execute,
        {
            "view": fprop_view(ConvProblem((1, 4, 1), (1, 3), padding=1)),
            "a": torch.randn(1, 4, 1),
            "b": torch.randn(1, 3, 1),
            "out": None,
            "epilogue": None,
            "out_dtype": None,
            "dtype": None,
            "precision": None,
            "atomic": False,
            "check": False,
        },
    ),
    "conv2d": (
        lc.conv2d,
        {
            "input": X,
            "weight": W,
            "stride": 1,
            "padding": 0,
            "dilation": 1,
            "groups": 1,
            **ENDING,
            "out_dtype": None,
            "return_statistics": False,
            "executor": None,
        },
    ),
    "conv_transpose2d": (
        lc.conv_transpose2d,
        {"input": X, "weight": W, "stride": 1, "groups": 1, **ENDING, "executor": None},
    ),
    "subm_conv": (
        lc.subm_conv,
        {"input": CLOUD, "weight": FILTER, "dilation": 1, "groups": 1, **ENDING},
    ),
    "sparse_conv": (
        lc.sparse_conv,
        {
            "input": CLOUD,
            "weight": FILTER,
            "stride": 2,
            "padding": 1,
            "groups": 1,
            "outputs": None,
            "capacity": None,
            "kernel_map": None,
            "out_dtype": None,
        },
    ),
    "strided_map": (
        lc.sparse.strided_map,
        {"coordinates": CLOUD.coordinates, "kernel_size": 2, "spatial_shape": None}
        | {"outputs": None, "capacity": None},
    ),
    "transposed_map": (
        lc.sparse.transposed_map,
        {"coordinates": CLOUD.coordinates, "spatial_shape": None, "outputs": None}
        | {"capacity": None},
    ),
    "SubmConv3d": (
        lc.nn.SubmConv3d,
        {"in_channels": 4, "out_channels": 4, "kernel_size": 3, "groups": 1, "bias": True}
        | {"dtype": None, "activation": None, "slope": 0.01},
    ),
    "reduce": (
        lc.reduce,
        {"view": SUMS, "x": torch.randn(4, 8), "op": "sum", "out_dtype": None},
    ),
}


@pytest.mark.parametrize("call", CALLS)
def test_odd_arguments_end_in_an_error_that_names_one(call):
    """No other exception of any kind: not Python's, not NumPy's, not torch's."""
    function, given = CALLS[call]
    names = {error.name.partition("[")[0].partition(".")[0] for error in refusals(function, given)}
    assert names <= {*inspect.signature(function).parameters, "rank"}


@pytest.mark.parametrize("flag", [np.ones(2), torch.ones(2)])
def test_a_flag_without_a_truth_is_named(flag):
    shape = f"expected True or False, got {type(flag).__name__} of shape \\(2,\\)"
    view, tensors = CALLS["execute"][1]["view"], (torch.randn(1, 4, 1), torch.randn(1, 3, 1))
    for name in ("check", "atomic"):
        with pytest.raises(ArgumentTypeError, match=f"`{name}`: {shape}"):
            lc.execute(view, *tensors, **{name: flag})
    with pytest.raises(ArgumentTypeError, match=f"`return_statistics`: {shape}"):
        lc.conv2d(X, W, return_statistics=flag)
    with pytest.raises(ArgumentTypeError, match=f"`bias`: {shape}"):
        lc.nn.SparseConv3d(4, 4, 3, bias=flag)
    for name in ("inplace", "return_report"):
        with pytest.raises(ArgumentTypeError, match=f"`{name}`: {shape}"):
            lc.nn.convert(torch.nn.Conv2d(4, 4, 3), **{name: flag})


@pytest.mark.parametrize("odd", [[1], "no device", {}, 1.5])
def test_a_device_and_a_dtype_of_no_layer_are_named(odd):
    with pytest.raises(ArgumentError, match=r"`device`: expected None, or a device of torch such"):
        lc.nn.SubmConv3d(4, 4, 3, device=odd)
    for dtype in (odd, torch.int8, torch.complex64, int):
        with pytest.raises(ArgumentTypeError, match=r"`dtype`: expected None, or a floating-point"):
            lc.nn.SubmConv3d(4, 4, 3, dtype=dtype)
    assert lc.nn.SubmConv3d(4, 4, 3, dtype=float, device="cpu").weight.dtype == torch.float64


def test_numbers_beyond_floats_and_memory_are_named():
    with pytest.raises(
        ArgumentError, match=r"`scale`: expected a number that fits in a float, got"
    ):
        lc.conv2d(X, W, scale=10**400)
    assert torch.equal(lc.conv2d(X, W, scale=2**70), lc.conv2d(X, W, scale=2.0**70))
    with pytest.raises(ArgumentError, match=r"`out_channels`: expected an int below 2\*\*31, got"):
        lc.nn.SubmConv3d(4, 2**70, 3)


def test_what_calibrates_and_what_restores_a_network_is_checked():
    net = torch.nn.Sequential(torch.nn.Conv2d(4, 4, 3)).eval()
    with pytest.raises(ArgumentTypeError, match=r"`batches`: expected an iterable of batches"):
        lc.nn.quantize(net, np.array(3.0))
    with pytest.raises(ArgumentTypeError, match=r"`state`: expected a state_dict, whose keys are"):
        lc.nn.quantize(net, state={1: 2})
