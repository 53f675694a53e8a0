"""Convolutions with a user's function, launched as on an H200 and run in the interpreter.

A process stands in for a machine with a GPU: calls choose, compile and bind their kernels as there.
"""

from __future__ import annotations

import pytest

from ..warm_process import run_python

pytest.importorskip("cutlass")

SCRIPT = """
import torch
from tests.campaign.interpreter import install

kernels = []
install(kernels.append)
import layoutconv as lc
from layoutconv import pointwise as pw
from layoutconv.ops import dense_calls

generator = torch.Generator().manual_seed(3)


def integers(*shape, dtype=torch.float16):
    drawn = torch.randint(-3, 4, shape, generator=generator).to(dtype)
    return drawn.contiguous(memory_format=torch.channels_last) if len(shape) == 4 else drawn


def function(x, threshold, by, skip, column):
    clamped = pw.where(x > threshold, threshold + by * (x - threshold), x)
    return clamped + 0.5 * skip + column


transposed = {transposed}
x, w = integers(2, 16, 5, 6), integers(8, 16, 3, 3)
convolve, reference = lc.conv2d, torch.nn.functional.conv2d
if transposed:  # a stride beyond the filter: cells that no tap reaches, and several views
    w, options = integers(16, 8, 2, 2), {{"stride": 3}}
    convolve, reference = lc.conv_transpose2d, torch.nn.functional.conv_transpose2d
else:
    options = {{"padding": 1}}
sums = reference(x.double(), w.double(), **options)
bias, threshold = integers(8), integers(8, dtype=torch.float32)
residual, skip = integers(*sums.shape), integers(*sums.shape, dtype={skip})
z = sums + bias.double().view(-1, 1, 1) + residual.double()
over = threshold.double().view(-1, 1, 1)
want = torch.where(z > over, over + 0.25 * (z - over), z) + 0.5 * skip.double()
want = want + torch.arange(8).double().view(-1, 1, 1)
for learned in (False, True):
    threshold = threshold.detach().clone().requires_grad_(learned)
    columns, sources, values = {{"threshold": threshold}}, {{"skip": skip}}, {{"by": 0.25}}
    step = lc.Pointwise(function, columns, {{}}, sources, values)
    for _ in range(2):  # the first call, and one that finds what was kept
        y = convolve(x, w, bias, **options, residual=residual, activation=step)
        assert torch.equal(y.detach().double(), want.half().double())
        assert y.requires_grad == learned
assert len(dense_calls.dense) == 1, len(dense_calls.dense)
assert kernels, "nothing was launched"
y.double().sum().backward()
past = (z > over).double().sum((0, 2, 3)) * 0.75
torch.testing.assert_close(threshold.grad.double(), past)
"""


@pytest.mark.parametrize(
    ("transposed", "skip"), [(False, "torch.float32"), (True, "torch.float16")]
)
def test_a_call_is_launched_with_the_tensors_of_a_function(transposed: bool, skip: str) -> None:
    script = SCRIPT.format(transposed=transposed, skip=skip)
    ran = run_python(["-c", script])
    assert ran.returncode == 0, ran.stderr[-3000:]
