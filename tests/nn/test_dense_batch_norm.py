"""Batch norms of dense images as modules: torch's, a sum and an activation."""

from __future__ import annotations

import pickle
import warnings
from copy import deepcopy
from inspect import signature
from typing import Any

import pytest
import torch

import layoutconv as lc
from layoutconv.errors import ArgumentError, ArgumentTypeError
from layoutconv.nn import dense_batch_norm

MODULES: list[tuple[str, dict[str, Any], tuple[int, ...]]] = [
    ("BatchNorm1d", {}, (7, 6)),
    ("BatchNorm1d", {"momentum": None}, (2, 6, 9)),
    ("BatchNorm2d", {"affine": False}, (2, 6, 4, 5)),
    ("BatchNorm2d", {"track_running_stats": False}, (2, 6, 4, 5)),
    ("BatchNorm3d", {"momentum": 0.3, "eps": 1e-3}, (2, 6, 3, 4, 5)),
]


def pair(name: str, more: dict[str, Any], **own: Any) -> tuple[Any, Any]:
    theirs = getattr(torch.nn, name)(6, **more).double()
    ours = getattr(lc.nn, name)(6, **more, **own).double()
    for parameter in theirs.parameters():
        torch.nn.init.normal_(parameter)
    ours.load_state_dict(theirs.state_dict())
    return ours, theirs


@pytest.mark.parametrize(("name", "more", "shape"), MODULES)
@pytest.mark.parametrize("activation", [None, "relu", "silu", "leaky_relu"])
def test_they_are_torchs_a_sum_and_an_activation(
    name: str, more: dict[str, Any], shape: tuple[int, ...], activation: str | None
) -> None:
    torch.manual_seed(0)
    ours, theirs = pair(name, more, activation=activation, slope=0.3)
    assert isinstance(ours, getattr(torch.nn, name))
    assert ("activation" in repr(ours)) == (activation is not None)
    for training in True, True, False:
        for module in ours, theirs:
            module.train(training)
        x, past = (torch.randn(shape).double().requires_grad_() for _ in range(2))
        y = theirs(x) + past
        if activation is not None:
            slope = (0.3,) if activation == "leaky_relu" else ()
            y = getattr(torch.nn.functional, activation)(y, *slope)
        found, grad = ours(x, past), torch.randn(shape).double()
        assert torch.equal(found, y)
        of_theirs = torch.autograd.grad(y, (x, past, *theirs.parameters()), grad)
        of_ours = torch.autograd.grad(found, (x, past, *ours.parameters()), grad)
        assert all(map(torch.equal, of_ours, of_theirs))
        assert ours.state_dict().keys() == theirs.state_dict().keys()
        assert all(map(torch.equal, ours.state_dict().values(), theirs.state_dict().values()))


@pytest.mark.parametrize(("name", "more", "shape"), MODULES)
def test_copies_and_pickles_compute_the_same(
    name: str, more: dict[str, Any], shape: tuple[int, ...]
) -> None:
    ours, x = pair(name, more, activation="relu")[0], torch.randn(shape).double()
    copies = deepcopy(ours), pickle.loads(pickle.dumps(ours))
    y = ours(x, x)
    for copied in copies:
        assert type(copied) is type(ours)
        assert torch.equal(copied(x, x), y)


@pytest.mark.parametrize(("name", "more", "shape"), MODULES)
def test_tracers_see_torchs_function(
    name: str, more: dict[str, Any], shape: tuple[int, ...]
) -> None:
    net = torch.nn.Sequential(pair(name, more, activation="silu")[0]).eval()
    x = torch.randn(shape).double()
    y = net(x)
    assert torch.equal(torch.fx.symbolic_trace(net)(x), y)
    assert torch.equal(torch.jit.trace(net, x)(x), y)
    assert torch.equal(torch.export.export(net, (x,)).module()(x), y)
    with pytest.raises(ArgumentTypeError, match=r"torch\.jit\.trace records dense ones"):
        torch.jit.script(net)


@pytest.mark.parametrize(("name", "more", "shape"), MODULES)
def test_tracers_warn_of_nothing_that_they_do_not_of_torchs(
    name: str, more: dict[str, Any], shape: tuple[int, ...]
) -> None:
    counts = []
    for module in pair(name, more):
        with warnings.catch_warnings(record=True) as found:
            warnings.simplefilter("always")
            torch.jit.trace(module.eval(), torch.randn(shape).double())
        counts.append(sum(w.category is torch.jit.TracerWarning for w in found))
    assert counts[0] == counts[1]


def test_under_autocast_dtypes_are_torchs() -> None:
    x = torch.randn(2, 6, 4, 5).bfloat16()
    ours, theirs = (nn.BatchNorm2d(6) for nn in (lc.nn, torch.nn))
    with torch.autocast("cpu"):
        assert ours(x).dtype is theirs(x).dtype is torch.bfloat16
        assert ours(x, x.float()).dtype is torch.float32  # as of a sum


def test_over_voxels_they_are_norms_of_rows() -> None:
    """In ``lc.nn.Sequential``, as torch's are; of images they are an error there."""
    x = lc.SparseTensor.from_dense(torch.randn(2, 5, 5, 6).relu())
    for input in x, x.padded(len(x) + 9):
        ours, theirs = lc.nn.BatchNorm1d(6, activation="relu"), torch.nn.BatchNorm1d(6)
        expected = lc.nn.Sequential(theirs, torch.nn.ReLU())(input).features
        assert torch.equal(lc.nn.Sequential(ours)(input).features, expected)
        assert torch.equal(ours.running_mean, theirs.running_mean)
    with pytest.raises(ArgumentTypeError, match=r"features on voxels go into lc\.nn\.BatchNorm1d"):
        lc.nn.Sequential(lc.nn.BatchNorm2d(6))(x)


def test_an_activation_that_there_is_not() -> None:
    with pytest.raises(ArgumentError, match="`activation`: expected None or one of relu"):
        lc.nn.BatchNorm2d(4, activation="swish")


@pytest.mark.skipif(
    "bias" not in signature(torch.nn.BatchNorm2d).parameters, reason="torch has no `bias` here"
)
def test_a_weight_without_a_bias() -> None:
    ours, theirs = (nn.BatchNorm2d(6, bias=False) for nn in (lc.nn, torch.nn))
    assert ours.bias is theirs.bias is None
    x = torch.randn(2, 6, 4, 3)
    assert torch.equal(ours(x), theirs(x))


@pytest.fixture
def launched(normalised_by: Any) -> list[tuple[Any, ...]]:
    """The arguments of kernels that are launched, on a CPU that says it is a GPU."""
    return normalised_by(dense_batch_norm.row_norm, lambda x, *given: (x.new_zeros(1), x))


@torch.no_grad()
def test_kernels_are_given_rows_of_the_same_memory(launched: list[tuple[Any, ...]]) -> None:
    x, past = (torch.randn(2, 6, 4, 5).to(memory_format=torch.channels_last) for _ in range(2))
    norm = lc.nn.BatchNorm2d(6, activation="relu", momentum=0.3)
    norm(x, past)
    rows, told, plan, memory = launched.pop()
    assert (rows.shape, rows.data_ptr()) == ((40, 6), x.data_ptr())
    assert (told.past.shape, told.past.data_ptr()) == ((40, 6), past.data_ptr())
    assert told.activation == "relu"
    assert told.momentum == 0.3
    assert told.counted is norm.num_batches_tracked
    assert memory == ((2, 6, 4, 5), x.stride())
    assert plan is None
    half = torch.randn(2, 6, 4, 5).half()
    half_past = half.to(memory_format=torch.channels_last)
    norm(half_past, half_past)
    assert len(launched) == 1


@torch.no_grad()
def test_the_memory_of_batches_of_one_and_of_single_pixels(launched: list[tuple[Any, ...]]) -> None:
    """Such modes may have any stride."""
    for x in (
        torch.randn(4, 5, 6).permute(2, 0, 1).unsqueeze(0), torch.randn(3, 6, 1, 1),
        torch.randn(3, 1, 4, 4), torch.randn(3, 6)[:, :, None, None].expand(3, 6, 1, 1),
    ):  # fmt: skip
        lc.nn.BatchNorm2d(x.shape[1])(x)
        rows, *_ = launched.pop()
        assert torch.equal(rows, x.movedim(1, -1).reshape(-1, x.shape[1]))


@torch.no_grad()
def test_kernels_are_not_given_what_only_torch_takes(launched: list[tuple[Any, ...]]) -> None:
    x = torch.randn(2, 6, 4, 5).to(memory_format=torch.channels_last)
    norm = lc.nn.BatchNorm2d(6)
    lc.nn.BatchNorm2d(6, momentum=None)(x)
    norm.eval()(x)
    norm.train()(x.contiguous())
    norm(torch._neg_view(x))
    lc.nn.BatchNorm1d(6)(torch.randn(2, 6, 9))
    lc.nn.BatchNorm1d(6)(torch.randn(6, 9).T)
    torch.func.vmap(lc.nn.BatchNorm2d(6, track_running_stats=False))(x[None])
    with pytest.raises(RuntimeError, match="6"):
        norm(torch.randn(2, 5, 4, 5).to(memory_format=torch.channels_last))
    assert launched == []
