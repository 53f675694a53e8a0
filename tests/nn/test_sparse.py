"""Sparse convolutions: the dense ones at the cells that are there, forward and backward."""

from __future__ import annotations

import pytest
import torch

import layoutconv as lc
from layoutconv.sparse import Coordinates, SparseTensor, submanifold_map

from .clouds import (
    at,
    cloud,
    dense_conv,
    dense_conv_transpose,
    lexicographic,
    numbers,
    per_mode,
)

SUBMANIFOLD = [
    (1, 3, 1, 1),
    (1, 4, 3, 2),
    (2, 3, 2, 1),
    (2, (2, 5), (1, 2), 4),
    (3, 3, 1, 1),
    (3, (2, 3, 1), (1, 2, 1), 2),
    (3, 7, 1, 1),  # 343 taps
    (4, 3, 1, 1),
    (4, (2, 1, 3, 2), 2, 2),
]
STRIDED = [
    (1, 3, 2, 1, 1, 1),
    (1, 2, 3, 0, 2, 2),
    (2, (3, 2), (2, 1), (1, 0), 1, 1),
    (2, 4, 2, ((0, 2), (1, 1)), 1, 4),
    (3, 3, 2, 1, 1, 1),
    (3, 2, 2, 0, 1, 2),
    (3, (1, 3, 3), (1, 2, 2), (0, 1, 2), (1, 1, 2), 1),
    (4, 2, 2, 0, 1, 1),
    (4, (3, 2, 1, 2), (2, 1, 1, 2), (1, 0, 0, 1), 1, 2),
]


def with_gradients(y: torch.Tensor, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """A result, and the gradients of its product with fixed numbers."""
    return y.detach(), *torch.autograd.grad(
        (y * numbers(*y.shape)).sum(), tensors, retain_graph=True
    )


def leaves(x: SparseTensor, K: int, kernel_size, groups: int):
    """Features, weight and bias that want gradients."""
    taps = per_mode(kernel_size, x.coordinates.rank)
    C = x.features.shape[1]
    given = x.features.clone(), numbers(K, *taps, C // groups), numbers(K)
    return [tensor.requires_grad_() for tensor in given]


def assert_all_close(ours, theirs):
    for p, q in zip(ours, theirs, strict=True):
        torch.testing.assert_close(p, q)


@pytest.mark.parametrize(("rank", "kernel_size", "dilation", "groups"), SUBMANIFOLD)
def test_submanifold(rank, kernel_size, dilation, groups):
    x = cloud(rank, 4)
    f, w, b = leaves(x, 8, kernel_size, groups)
    steps, taps = per_mode(dilation, rank), w.shape[1:-1]
    pairs = [(t // 2 * d, (t - 1 - t // 2) * d) for t, d in zip(taps, steps, strict=True)]
    grid = dense_conv(x.replace(f).dense(), w, 1, pairs, dilation, groups) + b
    theirs = with_gradients(at(grid, x.coords), f, w, b)
    for _ in range(2):  # as the operator, and as what was kept
        y = lc.subm_conv(x.replace(f), w, b, dilation, groups)
        assert y.coordinates is x.coordinates
        assert_all_close(with_gradients(y.features, f, w, b), theirs)


@pytest.mark.parametrize(
    ("rank", "kernel_size", "stride", "padding", "dilation", "groups"), STRIDED
)
def test_strided(rank, kernel_size, stride, padding, dilation, groups):
    x = cloud(rank, 4, share=0.1)
    f, w, b = leaves(x, 8, kernel_size, groups)
    grid = dense_conv(x.replace(f).dense(), w, stride, padding, dilation, groups)
    ones = x.replace(torch.ones(len(x), 1, dtype=f.dtype)).dense()
    reached = dense_conv(ones, torch.ones_like(w[:1, ..., :1]), stride, padding, dilation)[..., 0]
    for _ in range(2):
        y = lc.sparse_conv(x.replace(f), w, b, stride, padding, dilation, groups)
        assert torch.equal(y.coords, (reached > 0.5).nonzero().int())
        assert y.spatial_shape == tuple(grid.shape[1:-1])
        ours = with_gradients(y.features, f, w, b)
        assert_all_close(ours, with_gradients(at(grid + b, y.coords), f, w, b))
    assert (at(grid, (reached < 0.5).nonzero()) == 0).all()


@pytest.mark.parametrize(
    ("rank", "kernel_size", "stride", "padding", "more", "dilation", "groups"),
    [
        (1, 3, 2, 1, 1, 1, 1),
        (1, 2, 3, 0, 0, 2, 2),
        (2, (3, 2), (2, 1), (1, 0), (1, 0), 1, 1),
        (3, 2, 2, 0, 0, 1, 1),
        (3, 3, 2, 1, 1, 1, 4),
        (3, (1, 3, 2), (1, 2, 3), (0, 1, 0), 0, (1, 1, 2), 2),
    ],
)
def test_transposed_is_generative(rank, kernel_size, stride, padding, more, dilation, groups):
    x = cloud(rank, 4, share=0.1)
    f, w, b = leaves(x, 8, kernel_size, groups)
    rest = stride, padding, more, dilation
    grid = dense_conv_transpose(x.replace(f).dense(), w, *rest, groups)
    ones = x.replace(torch.ones(len(x), 1, dtype=f.dtype)).dense()
    fed = dense_conv_transpose(ones, torch.ones_like(w[:1, ..., :1]), *rest, 1)[..., 0]
    for _ in range(2):
        numbers_of = stride, padding, more, groups, dilation
        y = lc.sparse_conv_transpose(x.replace(f), w, b, *numbers_of)
        assert torch.equal(y.coords, (fed > 0.5).nonzero().int())
        assert y.spatial_shape == tuple(grid.shape[1:-1])
        ours = with_gradients(y.features, f, w, b)
        assert_all_close(ours, with_gradients(at(grid + b, y.coords), f, w, b))


def test_transposed_in_four_modes_is_the_gradient_of_the_strided_one():
    x, w = cloud(4, 4, share=0.1), numbers(6, 2, 2, 2, 2, 4)
    y = lc.sparse_conv_transpose(x, w, stride=2)
    grid = torch.zeros(*y.dense().shape[:-1], 6, dtype=w.dtype, requires_grad=True)
    back = dense_conv(grid, w.transpose(0, -1), 2)
    (theirs,) = torch.autograd.grad((back * x.dense()).sum(), grid)
    torch.testing.assert_close(y.dense(), theirs)


@pytest.mark.parametrize(
    ("rank", "kernel_size", "stride", "padding", "dilation", "groups"), STRIDED
)
def test_inverse_is_the_adjoint(rank, kernel_size, stride, padding, dilation, groups):
    x = cloud(rank, 4)
    f, w, _ = leaves(x, 8, kernel_size, groups)
    y = lc.sparse_conv(x.replace(f), w, None, stride, padding, dilation, groups)
    g = numbers(*y.features.shape)
    (theirs,) = torch.autograd.grad((y.features * g).sum(), f)
    back = w.detach().unflatten(0, (groups, -1)).transpose(1, -1).flatten(0, 1)
    z = lc.sparse_inverse_conv(y.replace(g), back, groups=groups)
    assert z.coordinates is x.coordinates
    torch.testing.assert_close(z.features, theirs)
    given = lc.sparse_inverse_conv(
        y.replace(g), back, groups=groups, kernel_map=y.coordinates.origin
    )
    assert torch.equal(given.features, z.features)


@pytest.mark.parametrize("transposed", [False, True])
def test_outputs_name_the_cells(transposed):
    x, w = cloud(2, 4, share=0.2), numbers(6, 3, 3, 4)
    function = lc.sparse_conv_transpose if transposed else lc.sparse_conv
    every = function(x, w, stride=2)
    cells = every.coords[torch.randperm(len(every))[: len(every) // 2]]
    some = Coordinates(cells, every.spatial_shape, 2)
    y = function(x, w, stride=2, outputs=some)
    assert y.coordinates is some
    torch.testing.assert_close(y.features, at(every.dense(), cells))


def test_offsets_of_a_set():
    x = cloud(3, 4)
    offsets = [(0, 0, 0), (1, 0, -2), (0, 3, 0), (-1, -1, 1)]
    f, w, b = (t.requires_grad_() for t in (x.features.clone(), numbers(6, 4, 4), numbers(6)))
    padded = torch.nn.functional.pad(x.replace(f).dense(), (0, 0, *[3] * 6))
    sums = b
    for tap, offset in enumerate(offsets):
        cells = x.coords + torch.tensor([0, *(3 + o for o in offset)])
        sums = sums + at(padded, cells) @ w[:, tap].T
    ours = lc.subm_conv(x.replace(f), w, b, offsets=offsets).features
    assert_all_close(with_gradients(ours, f, w, b), with_gradients(sums, f, w, b))


ACTIVATIONS = [
    "relu", "relu6", "leaky_relu", "gelu", "gelu_tanh", "silu", "sigmoid", "tanh", "hardswish"
]  # fmt: skip


@pytest.mark.parametrize("activation", [None, *ACTIVATIONS])
@pytest.mark.parametrize("scale", ["none", "number", "column", "wanted"])
def test_endings(activation, scale):
    x = cloud(2, 4)
    f, w, b = leaves(x, 6, 3, 1)
    r = numbers(len(x), 6).requires_grad_()
    s = {"none": None, "number": 0.5}.get(scale, numbers(6, seed=1))
    wanted = [f, w, b, r]
    if scale == "wanted":
        wanted.append(s.requires_grad_())
    sums = lc.subm_conv(x.replace(f), w).features
    theirs = sums * (1 if s is None else s) + b + r
    slope = 0.2
    if activation == "leaky_relu":
        theirs = torch.nn.functional.leaky_relu(theirs, slope)
    elif activation == "gelu_tanh":
        theirs = torch.nn.functional.gelu(theirs, approximate="tanh")
    elif activation is not None:
        theirs = getattr(torch.nn.functional, activation)(theirs)
    expected = with_gradients(theirs, *wanted)
    for residual in (r, x.replace(r), r):
        options = {"scale": s, "residual": residual, "activation": activation, "slope": slope}
        y = lc.subm_conv(x.replace(f), w, b, **options).features
        assert_all_close(with_gradients(y, *wanted), expected)
        with torch.no_grad():
            torch.testing.assert_close(
                lc.subm_conv(x.replace(f), w, b, **options).features, expected[0]
            )


@pytest.mark.parametrize("learns", ["weight", "scale"])
@pytest.mark.parametrize("out_dtype", [torch.float16, torch.float32])
def test_what_torch_finishes_is_as_exact_as_the_result(learns, out_dtype):
    x = cloud(2, 4)
    f, w = (t.detach().bfloat16() for t in leaves(x, 6, 3, 1)[:2])
    given = {"scale": numbers(6, seed=1).float(), "activation": "silu", "out_dtype": out_dtype}
    fused = lc.subm_conv(x.replace(f), w, **given).features
    {"weight": w, "scale": given["scale"]}[learns].requires_grad_()
    for _ in range(2):
        apart = lc.subm_conv(x.replace(f), w, **given).features
        eps = torch.finfo(out_dtype).eps
        torch.testing.assert_close(apart, fused, atol=eps / 8, rtol=eps)


FUNCTIONS = {
    "subm": (lambda x, w, **o: lc.subm_conv(x, w, **o), (3, 3)),
    "subm, even": (lambda x, w, **o: lc.subm_conv(x, w, **o), (2, 3)),
    "strided": (lambda x, w, **o: lc.sparse_conv(x, w, stride=2, padding=1, **o), (3, 3)),
    "transposed": (lambda x, w, **o: lc.sparse_conv_transpose(x, w, stride=2, **o), (2, 2)),
    "inverse": (
        lambda x, w, **o: lc.sparse_inverse_conv(
            lc.sparse_conv(x, numbers(4, 2, 2, 4), stride=2), w, **o
        ),
        (2, 2),
    ),
}


@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_gradients_of_first_and_second_order(name, groups):
    function, taps = FUNCTIONS[name]
    x = cloud(2, 4, share=0.03)
    assert 3 <= len(x) <= 8
    f, w, b = leaves(x, 2, taps, groups)

    def run(f, w, b):
        return function(x.replace(f), w, bias=b, groups=groups, activation="tanh").features

    run(f, w, b)  # from now on what was kept
    assert torch.autograd.gradcheck(run, (f, w, b), fast_mode=True)
    assert torch.autograd.gradgradcheck(run, (f, w, b), fast_mode=True)


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_the_same_bits_every_time(name, dtype):
    function, taps = FUNCTIONS[name]
    results = []
    for _ in range(3):
        x = cloud(2, 4, dtype=dtype)
        f, w = x.features.requires_grad_(), numbers(6, *taps, 4, dtype=dtype).requires_grad_()
        if name == "inverse":
            x = lc.sparse_conv(x.replace(f.double()), numbers(4, 2, 2, 4), stride=2)
            x = x.replace(x.features.to(dtype))
            y = lc.sparse_inverse_conv(x, w).features
        else:
            y = function(x.replace(f), w).features
        results.append((y, *torch.autograd.grad(y.float().square().sum(), (f, w))))
    for other in results[1:]:
        assert all(torch.equal(p, q) for p, q in zip(results[0], other, strict=True))


def test_permuted_rows_permute_the_result():
    x = cloud(3, 8)
    f = torch.randint(-4, 5, x.features.shape, generator=torch.Generator().manual_seed(0)).float()
    w = torch.randint(-4, 5, (6, 3, 3, 3, 8), generator=torch.Generator().manual_seed(1)).float()
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(2))
    permuted = SparseTensor(f[order], x.coords[order], x.spatial_shape, 2)
    results = []
    for tensor in (x.replace(f), permuted):
        given, weight = tensor.features.requires_grad_(), w.clone().requires_grad_()
        y = lc.subm_conv(tensor.replace(given), weight)
        results.append(
            (y.features, *torch.autograd.grad(y.features.square().sum(), (given, weight)))
        )
        down = lc.sparse_conv(tensor, w, stride=2)
        assert lexicographic(down.coords)
        results[-1] += (down.features,)
    (y, dx, dw, down), (py, pdx, pdw, pdown) = results
    assert torch.equal(y[order], py)
    assert torch.equal(dx[order], pdx)
    assert torch.equal(dw, pdw)
    assert torch.equal(down, pdown)


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("cells", [[], [[1, 3, 4]], [[0, 0, 0], [0, 8, 10]]])
def test_few_cells(name, cells):
    """None, one, and a grid of the batch without any."""
    function, taps = FUNCTIONS[name]
    coords = torch.tensor(cells, dtype=torch.int32).reshape(-1, 3)
    f = numbers(len(cells), 4).requires_grad_()
    w, b = numbers(6, *taps, 4).requires_grad_(), numbers(6).requires_grad_()
    x = SparseTensor(f, coords, (9, 11), batch_size=2)
    for _ in range(2):
        y = function(x, w, bias=b)
        gradients = torch.autograd.grad(y.features.sum(), (f, w, b))
        assert gradients[0].shape == f.shape
        torch.testing.assert_close(gradients[2], torch.full((6,), float(len(y)), dtype=b.dtype))
        if not cells:
            assert len(y) == 0
            assert not gradients[1].any()
    with torch.no_grad():
        assert torch.equal(function(x, w, bias=b).features, y.features)


def test_memory_with_gaps():
    x, w = cloud(2, 4), numbers(6, 3, 3, 4)
    wide = torch.stack([x.features, -x.features], dim=2)
    across = x.features.T.contiguous().T
    expected = lc.subm_conv(x, w).features
    for features in (wide[..., 0], across, x.features):
        for weight in (w, w.transpose(0, 3).contiguous().transpose(0, 3)):
            assert torch.equal(lc.subm_conv(x.replace(features), weight).features, expected)


def test_a_strided_gradient():
    """An incoming gradient may be expanded, or have a layout of its own."""
    x, w = cloud(2, 4), numbers(6, 3, 3, 4)
    f = x.features.clone().requires_grad_()
    for _ in range(2):
        y = lc.subm_conv(x.replace(f), w).features
        (whole,) = torch.autograd.grad(y, f, torch.ones_like(y))
        y = lc.subm_conv(x.replace(f), w).features
        (expanded,) = torch.autograd.grad(y.sum(), f)
        assert torch.equal(whole, expanded)


def test_a_map_in_place_of_numbers():
    x, w = cloud(2, 4), numbers(6, 3, 3, 4)
    found = submanifold_map(x.coordinates, 3, dilation=2)
    assert torch.equal(
        lc.subm_conv(x, w, kernel_map=found).features, lc.subm_conv(x, w, dilation=2).features
    )
