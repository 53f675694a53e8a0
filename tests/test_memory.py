"""Memory that is asked for past the dispatcher: what torch.empty_strided gives, where it may be."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from layoutconv.base import memory
from layoutconv.base.memory import allocator, maker

CPU = torch.device("cpu")
KINDS: list[tuple[Any, ...]] = [
    ((2, 3, 4), (12, 1, 3), torch.float16),
    ((1, 1), (1, 1), torch.float8_e4m3fn),
    ((5,), (1,), torch.int32),
    ((2, 0, 3), (3, 3, 1), torch.float64),
]


@pytest.fixture(params=["past the dispatcher", "by the operator"])
def way(request, monkeypatch) -> None:
    """Torch is asked for memory past its dispatcher; by its operator, as of one GPU of several."""
    if request.param == "by the operator":
        monkeypatch.setattr(memory, "past_dispatcher", lambda _: None)


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize("inference", [False, True])
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: str(kind[0]))
def test_tensors_are_those_of_the_operator(kind, inference):
    shape, stride, dtype = kind
    make = allocator(torch.Size(shape), stride, dtype, CPU)
    with torch.inference_mode(inference):
        got, want = make(), torch.empty_strided(shape, stride, dtype=dtype)
    for tensor in (got, want):
        assert (tensor.shape, tensor.stride(), tensor.dtype) == (torch.Size(shape), stride, dtype)
        assert tensor.device == CPU
        assert tensor.is_inference() is inference
    assert got.untyped_storage().nbytes() == want.untyped_storage().nbytes()
    assert torch._C._dispatch_keys(got) == torch._C._dispatch_keys(want)
    assert got.data_ptr() % 16 == 0
    assert make() is not make()


@pytest.mark.usefixtures("way")
def test_memory_is_of_the_same_kind_whoever_is_asked():
    made = maker.__wrapped__(CPU)((5, 27), (1, 5), torch.int32)
    assert (made.shape, made.stride(), made.dtype) == ((5, 27), (1, 5), torch.int32)
    assert made.device == CPU


@pytest.mark.parametrize("count", [1, 2])
def test_one_gpu_of_several_is_named(count, monkeypatch, gpu):
    """Past the dispatcher there is only the current one."""
    asked: list[Any] = []
    past = {"cuda": lambda *of: asked.append(of)}
    monkeypatch.setattr(memory, "empty_strided_on", past.get)
    gpu.says(device_count=count)
    monkeypatch.setattr(torch, "empty_strided", lambda *of, **kind: asked.append((*of, kind)))
    monkeypatch.setattr(memory, "past_dispatcher", memory.past_dispatcher.__wrapped__)  # not kept
    allocator((2, 3), (3, 1), torch.float16, torch.device("cuda:0"))()
    kind = {"dtype": torch.float16, "device": torch.device("cuda:0")}
    assert asked == [((2, 3), (3, 1), torch.float16 if count == 1 else kind)]
