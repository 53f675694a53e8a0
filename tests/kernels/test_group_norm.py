"""Group norms of images in the machine, as the executor launches them, beside float64."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional

from layoutconv.gpu import group_norm
from layoutconv.gpu.group_norm import GroupNormArgs
from layoutconv.kernels.compile.cubin import read_cubin
from layoutconv.kernels.maps.per_rank import build
from layoutconv.kernels.pointwise import group_norm as kernels
from layoutconv.kernels.pointwise.row_parts import THREADS
from layoutconv.nn.dense_norm import on_kernels
from layoutconv.planning.machine import starts_early
from layoutconv.planning.norm_schedule import FLIGHT, NormShape

from .cloud_launcher import SEEDS, Launches, few
from .draws import draws
from .test_pdl import MEMORY, START, WAIT

EPS = {torch.float16: 1e-3, torch.bfloat16: 8e-3, torch.float32: 4e-6}  # of a result's own size
# Dtypes of images, of parameters and of results, what follows, channels and groups.
KINDS = [
    (torch.float16, torch.float32, torch.float16, "leaky_relu", (16, 16)),
    (torch.float16, torch.float16, torch.float32, "silu", (64, 4)),
    (torch.bfloat16, torch.bfloat16, torch.bfloat16, None, (72, 1)),
    (torch.float32, torch.float32, torch.float32, "relu", (20, 2)),
    (torch.float32, None, torch.float32, None, (3, 3)),
    (torch.float16, None, torch.float16, "silu", (6, 2)),
]


def numbers(seed: int, *shape: int, dtype: torch.dtype) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def images(seed: int, N: int, rows: int, C: int, dtype: torch.dtype, mean: float = 0.0) -> Tensor:
    """Images (N, C, rows), channels last."""
    return (numbers(seed, N, rows, C, dtype=torch.float32) + mean).to(dtype).movedim(-1, 1)


def definition(x: Tensor, norm: GroupNormArgs, grad: Tensor) -> list[Tensor]:
    """The result, and the gradients of images, weight and bias, in float64."""
    C = x.shape[1]
    given = torch.ones(C), torch.zeros(C)
    columns = [g if t is None else t for g, t in zip(given, (norm.weight, norm.bias), strict=True)]
    leaves = [t.double().requires_grad_() for t in (x, *columns)]
    y = functional.group_norm(leaves[0], norm.groups, *leaves[1:], norm.eps)
    if norm.activation is not None:
        more = (norm.slope,) if norm.activation == "leaky_relu" else ()
        y = getattr(functional, norm.activation)(y, *more)
    return [y.detach(), *torch.autograd.grad(y, leaves, grad.double())]


def check(x: Tensor, norm: GroupNormArgs, grad: Tensor) -> None:
    assert group_norm.takes(x, norm)
    y, dx, dw, db = definition(x, norm, grad)
    out, statistics = group_norm.normalised(x, norm)
    assert out.dtype is norm.dtype
    assert statistics.shape == (len(x), norm.groups, 2)
    of_x, (of_bias, of_weight) = group_norm.gradients(x, norm, statistics, grad)
    assert of_x.dtype is x.dtype
    # A mean is a float32, and may be large beside deviations.
    of_mean = 2.0**-23 * (statistics[..., 0].abs() * statistics[..., 1]).max().item()

    def same(found: Tensor, expected: Tensor, more: float = 1.0) -> None:
        limit = more * (EPS[found.dtype] * max(expected.abs().max().item(), 1.0) + of_mean)
        torch.testing.assert_close(found.double(), expected, rtol=0, atol=limit)

    same(out, y)
    if norm.activation in ("relu", "leaky_relu"):  # at a kink, one ulp decides
        off = (of_x.double() - dx).abs() > 8 * EPS[x.dtype] * max(dx.abs().max().item(), 1.0)
        assert off.double().mean() < 2e-2
    else:
        same(of_x, dx, 8)
    close = 3e-5 * grad.double().abs().sum((0, 2)).max().item() + 8 * of_mean * len(x) * x.shape[2]
    if norm.activation not in ("relu", "leaky_relu") or x.dtype is torch.float32:
        for sums, expected in (of_weight, dw), (of_bias, db):
            torch.testing.assert_close(sums.double(), expected, rtol=0, atol=max(close, 1e-4))


@settings(few, max_examples=draws(10))
@given(
    seed=SEEDS, N=st.integers(1, 4), rows=st.integers(2, 300),
    kind=st.sampled_from(KINDS), mean=st.sampled_from([0.0, 30.0]),
)  # fmt: skip
def test_it_is_the_norm_of_each_image_and_group(
    simulated: Launches, seed: int, N: int, rows: int, kind: Any, mean: float
) -> None:
    dtype, of_parameters, stored, activation, (C, groups) = kind
    simulated.seed = seed
    weight = bias = None
    if of_parameters is not None:
        weight, bias = numbers(seed + 1, 2, C, dtype=of_parameters)
    norm = GroupNormArgs(groups, weight, bias, 1e-3, activation, 0.2, stored)
    grad = images(seed + 2, N, rows, C, dtype=stored)
    check(images(seed, N, rows, C, dtype=dtype, mean=mean), norm, grad)


@pytest.mark.parametrize(("C", "groups"), [(320, 32), (128, 1), (96, 96)])
def test_groups_span_blocks_of_columns(simulated: Launches, C: int, groups: int) -> None:
    weight, bias = numbers(1, 2, C, dtype=torch.float32)
    norm = GroupNormArgs(groups, weight, bias, 1e-5, "silu", 0.0, torch.float16)
    shape = 2, 70, C
    check(images(2, *shape, dtype=torch.float16), norm, images(3, *shape, dtype=torch.float16))


def test_results_do_not_depend_on_which_cta_is_first(simulated: Launches) -> None:
    x, grad = (images(seed, 3, 500, 24, dtype=torch.float16) for seed in range(2))
    norm = GroupNormArgs(3, None, None, 1e-5, None, 0.0, torch.float16)
    found = []
    for seed in 0, 7:
        simulated.seed = seed
        out, statistics = group_norm.normalised(x, norm)
        found.append((out, statistics, *group_norm.gradients(x, norm, statistics, grad)))
    assert all(torch.equal(one, other) for one, other in zip(*found, strict=True))


def test_what_is_not_a_number_stays_in_its_group(simulated: Launches) -> None:
    x = images(0, 2, 40, 8, dtype=torch.float32)
    x[1, 5, 7] = torch.nan
    norm = GroupNormArgs(4, None, None, 1e-5, "relu", 0.0, torch.float32)
    out, statistics = group_norm.normalised(x, norm)
    wrong = torch.zeros(2, 8, dtype=torch.bool)
    wrong[1, 4:6] = True
    assert torch.equal(out.isnan().all(2), wrong)
    assert torch.equal(out.isnan().any(2), wrong)
    assert torch.equal(statistics.isnan().any(2), wrong[:, ::2])


def test_autograd_goes_through_any_number_of_times(simulated: Launches) -> None:
    """Results may be written to, as by ``ReLU(inplace=True)``; gradients come in any memory."""
    x = images(0, 2, 50, 6, dtype=torch.float32).requires_grad_()
    weight, bias = (numbers(1 + i, 6, dtype=torch.float32).requires_grad_() for i in range(2))
    norm = GroupNormArgs(2, weight, bias, 1e-3, "silu", 0.0, torch.float32)
    leaves, found = (x, weight, bias), []
    for function in on_kernels, by_torch:
        y = function(x, norm).mul_(2.0)
        grads = torch.autograd.grad(y.square().sum(), leaves, create_graph=True)
        first = torch.autograd.grad(y, leaves, torch.ones(2, 6, 50), retain_graph=True)
        second = torch.autograd.grad(sum(g.square().sum() for g in grads), leaves)
        found.append((y, *grads, *first, *second))
    for one, other in zip(*found, strict=True):
        limit = 2e-5 * max(other.abs().max().item(), 1.0)
        torch.testing.assert_close(one, other, rtol=1e-4, atol=limit)
    assert on_kernels(x, norm).stride() == x.stride()


def test_batches_of_gradients(simulated: Launches) -> None:
    """As ``torch.autograd.functional.jacobian(vectorize=True)`` asks for; kernels take none."""
    x = images(0, 2, 20, 6, dtype=torch.float32).requires_grad_()
    weight, bias = (numbers(1 + i, 6, dtype=torch.float32).requires_grad_() for i in range(2))
    norm = GroupNormArgs(2, weight, bias, 1e-3, "silu", 0.0, torch.float32)
    grads = numbers(3, 4, 2, 6, 20, dtype=torch.float32)
    found = [
        torch.autograd.grad(f(x, norm), (x, weight, bias), grads, is_grads_batched=True)
        for f in (on_kernels, by_torch)
    ]
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


def test_a_gradient_that_is_to_be_negated(simulated: Launches) -> None:
    x = images(0, 2, 20, 6, dtype=torch.float32).requires_grad_()
    norm, grad = GroupNormArgs(2, None, None, 1e-3, "silu", 0.0, torch.float32), torch.ones_like(x)
    y = on_kernels(x, norm)
    (plain,) = torch.autograd.grad(y, x, grad, retain_graph=True)
    (found,) = torch.autograd.grad(y, x, torch._neg_view(grad))
    torch.testing.assert_close(found, -plain, rtol=1e-4, atol=1e-5)


def by_torch(x: Tensor, norm: GroupNormArgs) -> Tensor:
    y = functional.group_norm(x, norm.groups, norm.weight, norm.bias, norm.eps)
    return functional.silu(y)


@pytest.mark.parametrize(("arch", "activation"), [("sm_80", "leaky_relu"), ("sm_90a", "silu")])
def test_kernels_fit_into_every_gpu(arch: str, activation: str, tmp_path: Path) -> None:
    shape = NormShape(
        "float16", 8, "float32", early=starts_early(arch), images=True, activation=activation
    )
    for chain in kernels.forward(shape), kernels.backward(shape):
        for kernel, *_ in chain.parts:
            built = build(kernel, arch, str(tmp_path))
            (found,) = read_cubin(built.__cubin__).values()
            ptx, first = built.__ptx__, re.search(MEMORY, built.__ptx__)
            assert first is not None
            assert ptx.count(WAIT) == ptx.count(START) == shape.early
            assert not shape.early or ptx.index(START) < ptx.index(WAIT) < first.start()
            assert found.stack == 0
            # Two CTAs to a multiprocessor, but for the gradient through an exponential.
            assert found.registers * THREADS <= (65_536 if activation == "silu" else 32_768)


def test_machine_code_moves_vectors(tmp_path: Path) -> None:
    """Rows are read and written 16 bytes at a time; of columns each thread has its own."""
    shape = NormShape("float16", 8, "float32", early=True, images=True, activation="silu")
    built = build(kernels.forward(shape), "sm_90a", str(tmp_path))
    found = read_cubin(built.__cubin__)
    (statistics,) = (kernel for name, kernel in found.items() if "Statistics" in name)
    (normalise,) = (kernel for name, kernel in found.items() if "NormaliseGroups" in name)
    assert statistics.opcodes["LDG"] == FLIGHT
    assert normalise.opcodes["STG"] == FLIGHT
    assert normalise.opcodes["LDG"] == FLIGHT + 4 * 8
    assert not any(kernel.stack for kernel in found.values())
