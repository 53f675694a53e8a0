"""New memory on the host is like torch's, and begins with a cache line."""

from __future__ import annotations

import pytest
import torch

from layoutconv.sparse.stream.host import new_on_host


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64, torch.int32])
@pytest.mark.parametrize("shape", [(3, 5), (7,), (0, 4), (1 << 20, 3)])
def test_new_memory_is_as_asked_for(shape, dtype):
    one, other = (new_on_host(shape, dtype).fill_(value) for value in (1, 2))
    for tensor, value in ((one, 1), (other, 2)):
        assert (tuple(tensor.shape), tensor.dtype) == (shape, dtype)
        assert tensor.is_contiguous()
        assert not tensor.numel() or tensor.data_ptr() % 64 == 0
        assert torch.equal(tensor, torch.full(shape, value, dtype=dtype))
