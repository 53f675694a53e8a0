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


@pytest.mark.parametrize("of_torch", [False, True])
@pytest.mark.parametrize("inference", [False, True])
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: str(kind[0]))
def test_tensors_are_those_of_the_operator(kind, inference, of_torch, monkeypatch):
    if not of_torch:
        monkeypatch.setattr(memory, "past_dispatcher", lambda _: None)
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


@pytest.mark.parametrize("several_gpus", [False, True])
def test_memory_is_of_the_same_kind_whoever_is_asked(several_gpus, monkeypatch):
    if several_gpus:
        monkeypatch.setattr(memory, "past_dispatcher", lambda _: None)
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
