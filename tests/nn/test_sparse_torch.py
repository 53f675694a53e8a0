"""Sparse convolutions in what torch does with operators: autocast, compile, memory; and errors."""

from __future__ import annotations

import gc
import re
import weakref
from pathlib import Path
from unittest import mock

import pytest
import torch

import layoutconv as lc
from layoutconv.errors import ArgumentError, ArgumentTypeError
from layoutconv.nn import sparse_depthwise
from layoutconv.ops import sparse_operators as executor
from layoutconv.sparse import KernelMap, SparseTensor, prune, strided_map, submanifold_map
from layoutconv.sparse.coords.cell_table import Table

from .clouds import cloud, numbers


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("lowered", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("activation", [None, "relu", "gelu"])
def test_autocast(training, lowered, activation):
    x = cloud(2, 8, dtype=torch.float32)
    w, b, r = (numbers(*s, dtype=torch.float32) for s in ((6, 3, 3, 8), (6,), (len(x), 6)))
    tensors = [t.requires_grad_(training) for t in (x.features.clone(), w, b, r)]
    f = tensors[0]
    low = [t.detach().to(lowered).requires_grad_(training) for t in tensors[:2]]
    for _ in range(2):
        with torch.autocast("cpu", dtype=lowered), torch.set_grad_enabled(training):
            y = lc.subm_conv(x.replace(f), w, b, activation=activation, residual=r).features
        plain = lc.subm_conv(x.replace(low[0]), low[1], b, activation=activation, residual=r)
        assert y.dtype == lowered
        assert torch.equal(y, plain.features)
        if training:
            ours = torch.autograd.grad(y.float().square().sum(), tensors)
            assert all(g.dtype == torch.float32 for g in ours)
            theirs = torch.autograd.grad(plain.features.float().square().sum(), [*low, b, r])
            for p, q in zip(ours, theirs, strict=True):
                assert torch.equal(p, q.float())


def test_autocast_leaves_float64():
    x, w = cloud(2, 4), numbers(6, 3, 3, 4)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(lc.subm_conv(x, w).features, lc.subm_conv(x, w).features)
        assert lc.subm_conv(x, w).features.dtype == torch.float64
        with pytest.raises(ArgumentTypeError, match=r"`weight`: expected torch\.float64"):
            lc.subm_conv(x, w.float())


def network(features, weight, down, found, strided):
    """A function of tensors, given its maps."""
    x = SparseTensor(features, found.inputs)
    y = lc.subm_conv(x, weight, kernel_map=found, activation="relu")
    y = lc.sparse_conv(y, down, kernel_map=strided)
    return lc.sparse_inverse_conv(y, weight[:, :2, :2], kernel_map=strided, residual=x).features


def maps(seed: int):
    """Two kernel maps, with the tensors that gradients need."""
    x = cloud(2, 4, dtype=torch.float32, seed=seed)
    found, strided = submanifold_map(x.coordinates, 3), strided_map(x.coordinates, 2, 2)
    for kernel_map in (found, strided, strided.inverse):
        executor.tables(kernel_map, (4, 4), gradients=True)
    return x, found, strided


@pytest.mark.parametrize("wanted", [False, True])
def test_compiled_whole_given_the_maps(wanted):
    torch._dynamo.reset()
    compiled = torch.compile(network, fullgraph=True, backend="aot_eager")
    for seed in (0, 1, 0):  # another cloud has other maps
        x, found, strided = maps(seed)
        tensors = [
            t.requires_grad_(wanted)
            for t in (
                x.features.clone(),
                numbers(4, 3, 3, 4, dtype=torch.float32),
                numbers(4, 2, 2, 4, dtype=torch.float32),
            )
        ]
        y, z = (run(*tensors, found, strided) for run in (network, compiled))
        torch.testing.assert_close(y, z)
        if wanted:
            gradients = [torch.autograd.grad(t.square().sum(), tensors) for t in (y, z)]
            for p, q in zip(*gradients, strict=True):
                torch.testing.assert_close(p, q)


def test_what_training_wants_of_a_new_map_compiles_too():
    """Pairs are as many as data say, and their chunks in a graph as many as there could be."""
    torch._dynamo.reset()
    x, found = cloud(2, 4, dtype=torch.float32), None
    w = numbers(4, 3, 3, 4, dtype=torch.float32).requires_grad_()

    def step(w):
        y = lc.subm_conv(x, w, kernel_map=found, activation="relu")
        return sparse_depthwise(y.features, w[..., :1], found).square().sum()

    compiled = torch.compile(step, fullgraph=True, backend="aot_eager")
    for run in (compiled, step):
        found = submanifold_map(SparseTensor(x.features, x.coords.clone(), (9, 11), 2).coordinates)
        x = SparseTensor(x.features, found.inputs)
        mine = torch.autograd.grad(run(w), w)[0]
        torch.testing.assert_close(mine, torch.autograd.grad(step(w), w)[0])


def test_pairs_as_an_operator_keep_torchs_rules():
    found = maps(0)[1]
    for chunk in (1, 32):
        torch.library.opcheck(torch.ops.layoutconv.map_pairs, (found.index, chunk))


FOLLOWED = (
    "nn/*.py", "view/epilogue.py", "ops/sparse_operators.py", "sparse/maps/two_way.py",
    "sparse/maps/map_index.py",
    "sparse/coords/sparse_tensor.py",
)  # fmt: skip
NOT_FOLLOWED = {
    r"isinstance\(\w+, int \| float\)": "2.8",
    r"\._replace\(": "2.8",
    r"__dict__\.update\(self": "2.11",
}


def test_the_code_that_is_compiled_is_such_as_older_torch_follows_too():
    room = Path(lc.__file__).parent
    files = [file for pattern in FOLLOWED for file in room.glob(pattern)]
    assert len(files) > len(FOLLOWED)
    for file in files:
        for pattern, version in NOT_FOLLOWED.items():
            found = re.search(pattern, file.read_text())
            assert not found, f"{file}: torch.compile of {version} does not follow {found.group()}"


def test_modules_compile_whole():
    torch._dynamo.reset()
    x, found, _ = maps(0)
    net = lc.nn.Sequential(
        lc.nn.SubmConv2d(4, 4, 3, bias=False),
        torch.nn.BatchNorm1d(4),
        torch.nn.Sequential(torch.nn.ReLU(), torch.nn.Linear(4, 4)),
    ).eval()

    def run(features):
        y = net[0](SparseTensor(features, found.inputs), kernel_map=found)
        return net[1:](y).features

    compiled = torch.compile(run, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(x.features), run(x.features))


@pytest.mark.parametrize("mirrored", [False, True])
def test_operators_keep_torchs_rules(mirrored):
    x, found, strided = maps(0)
    kernel_map = found if mirrored else strided
    tables = executor.tables(kernel_map, (4, 4), gradients=True)
    w = numbers(6, *kernel_map.taps, 4, dtype=torch.float32).requires_grad_()
    f, g = x.features.requires_grad_(), numbers(len(kernel_map.outputs), 6, dtype=torch.float32)
    given = *tables, len(kernel_map.outputs), 1, False, mirrored
    b = numbers(6, dtype=torch.float32).requires_grad_()
    torch.library.opcheck(executor.sparse_conv, (f, w, *given, b, None, None, "relu"))
    back = *tables, len(x), 1, True, mirrored
    torch.library.opcheck(executor.sparse_conv, (g.requires_grad_(), w, *back))
    torch.library.opcheck(executor.sparse_wgrad, (g, f, *tables, kernel_map.taps, 1, mirrored))


def test_convolutions_on_the_same_cells_share_a_map():
    x = cloud(3, 4)
    w, v = numbers(6, 3, 3, 3, 4), numbers(5, 3, 3, 3, 6)
    with mock.patch.object(KernelMap, "of_search", wraps=KernelMap.of_search) as made:
        y = lc.subm_conv(lc.subm_conv(x, w), v)
        assert made.call_count == 1
        assert y.coordinates is x.coordinates
        first = lc.sparse_conv(x, w, stride=2, padding=1)
        second = lc.sparse_conv(x.replace(x.features * 2), w, stride=2, padding=1)
        assert made.call_count == 2
        assert first.coordinates is second.coordinates
        lc.sparse_conv(x, w, stride=2)
        assert made.call_count == 3
    with mock.patch.object(Table, "search", side_effect=AssertionError):
        lc.sparse_conv(x, w, stride=2)


def test_nothing_keeps_a_map_that_nobody_has():
    """Also with the garbage collector off: views of an index know it through torch's C++."""
    x = cloud(2, 4)
    index = submanifold_map(x.coordinates, 3).index.T.clone().T
    found = KernelMap(x.coordinates, x.coordinates, (3, 3), index, mirrored=True)
    f, w = x.features.clone().requires_grad_(), numbers(4, 3, 3, 4).requires_grad_()
    gc.collect()
    gc.disable()
    try:
        for _ in range(3):
            y = lc.subm_conv(x.replace(f), w, kernel_map=found, activation="relu")
            torch.autograd.grad(y.features.square().sum(), (f, w))
        executor.conv(f.detach(), w.detach(), *executor.tables(found, (4, 4), gradients=True),
                      len(x), 1, False, True)  # fmt: skip
        tables = executor.tables(found, (4, 4), gradients=True)
        alive = [weakref.ref(t) for t in (index, tables.pair_outputs, found)]
        del found, index, y, tables
        assert [reference() for reference in alive] == [None] * 3
    finally:
        gc.enable()


def test_a_map_that_was_made_in_inference_mode_trains():
    x, w = cloud(2, 4), numbers(6, 3, 3, 4)
    with torch.inference_mode():
        expected = lc.subm_conv(x, w).features.clone()
    y = lc.subm_conv(x, w.requires_grad_()).features
    assert torch.equal(y, expected)
    y.sum().backward()
    assert w.grad.any()


def test_pruned_rows_and_their_gradients():
    x = cloud(3, 4)
    f = x.features.clone().requires_grad_()
    mask = torch.arange(len(x)) % 3 == 0
    y = prune(x.replace(f), mask)
    assert torch.equal(y.coords, x.coords[mask])
    assert torch.equal(y.features, f[mask])
    assert y.coordinates.check() is not x.coordinates
    (gradient,) = torch.autograd.grad(y.features.square().sum(), f)
    assert torch.equal(gradient, 2 * f * mask[:, None])
    again = lc.subm_conv(y, numbers(2, 3, 3, 3, 4))
    dense = SparseTensor(f[mask], x.coords[mask], x.spatial_shape, 2)
    torch.testing.assert_close(again.features, lc.subm_conv(dense, numbers(2, 3, 3, 3, 4)).features)
    assert len(prune(x, torch.zeros(len(x), dtype=torch.bool))) == 0
    filled = x.padded(len(x) + 5)
    some = prune(filled, torch.nn.functional.pad(mask, (0, 5), value=True))
    assert len(some) == len(y) + 5
    w = numbers(2, 3, 3, 3, 4)
    assert torch.equal(lc.subm_conv(some, w).unpadded().features, lc.subm_conv(y, w).features)
    for bad, error in ((mask.int(), "torch.int32"), (mask[1:], r"shape \(")):
        with pytest.raises(ArgumentError, match=f"`mask`: expected .*{error}"):
            prune(x, bad)


X, W = cloud(2, 4), numbers(6, 3, 3, 4)
MAP = submanifold_map(X.coordinates, 3)
ERRORS = [
    ("input", lambda: lc.subm_conv(X.features, W)),
    ("input", lambda: lc.subm_conv(X.replace(X.features.int()), W)),
    ("weight", lambda: lc.subm_conv(X, W[0])),
    ("weight", lambda: lc.subm_conv(X, "weight")),
    ("weight", lambda: lc.subm_conv(X, W[..., :3])),
    ("weight", lambda: lc.subm_conv(X, W.float())),
    ("weight", lambda: lc.subm_conv(X, W.to("meta"))),
    ("groups", lambda: lc.subm_conv(X, W, groups=3)),
    ("groups", lambda: lc.subm_conv(X, W, groups=True)),
    ("groups", lambda: lc.subm_conv(X, W, groups=[1])),
    ("groups", lambda: lc.subm_conv(X, W, groups=1.0)),
    ("dilation", lambda: lc.subm_conv(X, W, dilation=0)),
    ("stride", lambda: lc.sparse_conv(X, W, stride=(1, 2, 3))),
    ("padding", lambda: lc.sparse_conv(X, W, padding=-1)),
    ("kernel_size", lambda: lc.sparse_conv(X, numbers(6, 12, 12, 4))),
    ("output_padding", lambda: lc.sparse_conv_transpose(X, W, output_padding=-1)),
    ("kernel_map", lambda: lc.sparse_inverse_conv(X, W)),
    (
        "kernel_map",
        lambda: lc.subm_conv(X, W, kernel_map=submanifold_map(cloud(2, 4, 0.1).coordinates, 3)),
    ),
    ("bias", lambda: lc.subm_conv(X, W, W[:5, 0, 0, 0])),
    ("bias", lambda: lc.subm_conv(X, W, 1.0)),
    ("bias", lambda: lc.subm_conv(X, W, torch.ones(6, device="meta"))),
    ("bias", lambda: lc.subm_conv(X, W, torch.ones(6, dtype=torch.int32))),
    ("scale", lambda: lc.subm_conv(X, W, scale=torch.ones(5))),
    ("scale", lambda: lc.subm_conv(X, W, scale=True)),
    ("residual", lambda: lc.subm_conv(X, W, residual=X.features)),
    ("residual", lambda: lc.subm_conv(X, W, residual=cloud(2, 6))),
    ("activation", lambda: lc.subm_conv(X, W, activation="swish")),
    ("slope", lambda: lc.subm_conv(X, W, slope="a")),
    ("slope", lambda: lc.sparse_conv(X, W, activation="leaky_relu", slope="a")),
    ("out_dtype", lambda: lc.sparse_conv(X, W, out_dtype="half")),
    ("out_dtype", lambda: lc.subm_conv(X, W[..., :1], groups=4, out_dtype=torch.int64)),
    ("kernel_map", lambda: lc.subm_conv(X, W, kernel_map=3)),
    ("kernel_map", lambda: lc.sparse_inverse_conv(X, W, kernel_map=3)),
    ("dilation", lambda: lc.subm_conv(X, W, None, 2, kernel_map=MAP)),
    ("offsets", lambda: lc.subm_conv(X, W, offsets=[(0, 0)], kernel_map=MAP)),
    ("stride", lambda: lc.sparse_conv(X, W, None, (1, 2), kernel_map=MAP)),
    ("padding", lambda: lc.sparse_conv(X, W, padding=((0, 1), 0), kernel_map=MAP)),
    ("outputs", lambda: lc.sparse_conv(X, W, outputs=X.coordinates, kernel_map=MAP)),
    ("capacity", lambda: lc.sparse_conv(X, W, capacity=9, kernel_map=MAP)),
    ("output_padding", lambda: lc.sparse_conv_transpose(X, W, output_padding=1, kernel_map=MAP)),
]


@pytest.mark.parametrize(("name", "call"), ERRORS)
def test_errors_name_the_argument(name, call):
    for _ in range(2):
        lc.subm_conv(X, W)  # what was kept does not let a mistake through
        with pytest.raises(ArgumentError, match=f"argument `{name}`: expected "):
            call()
