"""torch's own samples of its six convolutions, and the arguments that it expects to be refused."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from unittest.mock import patch

import pytest
import torch
from torch import Tensor

import layoutconv as lc
from layoutconv.errors import ArgumentError, ArgumentTypeError

# Its import would forbid all other tests of the process to set torch's flags.
with patch.object(torch.backends, "disable_global_flags"):
    samples_of_torch = pytest.importorskip("torch.testing._internal.common_methods_invocations")
NAMES = [f"conv{kind}{rank}d" for kind in ("", "_transpose") for rank in (1, 2, 3)]
INFOS = {
    name: next(op for op in samples_of_torch.op_db if op.name == f"nn.functional.{name}")
    for name in NAMES
}
DTYPES = sorted(INFOS["conv1d"].dtypes - {torch.int64}, key=str)
each = pytest.mark.parametrize("name", NAMES)
# Rounding, of sums in fp32 and of a result, over the largest number that there is.
BOUNDS = {torch.float16: 2e-3, torch.bfloat16: 2e-2, torch.float32: 1e-5, torch.complex64: 1e-5}


def samples(name: str, dtype: torch.dtype) -> Iterator[tuple[list[Any], dict[str, Any]]]:
    """Tensors, with numbers that are given by place, and numbers that are given by name."""
    torch.manual_seed(0)
    grad = dtype.is_floating_point or dtype.is_complex
    for sample in INFOS[name].sample_inputs("cpu", dtype, requires_grad=grad):
        yield [sample.input, *sample.args], sample.kwargs


def assert_near(found: Tensor, expected: Tensor, dtype: torch.dtype) -> None:
    bound = BOUNDS.get(dtype, 1e-12)
    largest = float(expected.detach().abs().max())
    torch.testing.assert_close(found, expected, atol=bound * max(1, largest), rtol=0)


def gradients(y: Tensor, inputs: list[Any], direction: Tensor) -> tuple[Tensor, ...]:
    return torch.autograd.grad(y, [t for t in inputs if isinstance(t, Tensor)], direction)


@each
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_samples_have_the_results_and_the_gradients_of_torch(name, dtype):
    """First calls and warm ones match torch; meta tensors have the right shapes."""
    ours, count = getattr(lc, name), 0
    for inputs, numbers in samples(name, dtype):
        expected = INFOS[name].op(*inputs, **numbers)
        for _ in range(2):
            found = ours(*inputs, **numbers)
            assert_near(found, expected, dtype)
        direction = torch.randn_like(expected)
        grads = (gradients(y, inputs, direction) for y in (found, expected))
        for mine, theirs in zip(*grads, strict=True):
            assert_near(mine, theirs, dtype)
        on_meta = [t.to("meta") if isinstance(t, Tensor) else t for t in inputs]
        assert ours(*on_meta, **numbers).shape == expected.shape
        count += 1
    assert count >= 10


@each
def test_samples_of_integers_are_refused_by_name(name):
    for inputs, numbers in samples(name, torch.int64):
        with pytest.raises(ArgumentTypeError, match="`input`: expected float16, "):
            getattr(lc, name)(*inputs, **numbers)


@each
def test_what_torch_expects_to_be_refused_is(name):
    """Its lists are of the convolutions that are not transposed; ours has the sentences."""
    info = INFOS[name]
    refused = list(info.error_inputs("cpu")) if info.error_inputs_func else []
    assert len(refused) >= (0 if "transpose" in name else 10)
    for error in refused:
        sample = error.sample_input
        for function, kind in ((info.op, error.error_type), (getattr(lc, name), ArgumentError)):
            with pytest.raises(kind) as raised:
                function(sample.input, *sample.args, **sample.kwargs)
        assert str(raised.value).startswith("argument `")
