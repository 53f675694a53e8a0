"""Where there is a GPU, it gives the same bits as the machine, instruction by instruction."""

from __future__ import annotations

import ctypes

import numpy as np
import pytest
import torch

from .cases import ALL, Case, values
from .snippets import elementwise, elementwise_module

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")


def on_gpu(ptx: str, inputs: list[np.ndarray], result: np.ndarray) -> None:
    """Run the module's ``snippet`` in one CTA, one thread per element, and fill ``result``."""
    tensors = [torch.from_numpy(x.view(np.uint8)).cuda() for x in (*inputs, result)]
    torch.cuda.synchronize()
    driver = ctypes.CDLL("libcuda.so.1")
    module, function = ctypes.c_void_p(), ctypes.c_void_p()

    def check(status: int) -> None:
        assert status == 0, f"CUDA driver error {status}"

    check(driver.cuModuleLoadData(ctypes.byref(module), ctypes.c_char_p(ptx.encode())))
    check(driver.cuModuleGetFunction(ctypes.byref(function), module, ctypes.c_char_p(b"snippet")))
    addresses = [ctypes.c_uint64(x.data_ptr()) for x in tensors]
    pointers = (ctypes.c_void_p * len(addresses))(*(ctypes.addressof(a) for a in addresses))
    shape = [ctypes.c_uint(n) for n in (1, 1, 1, inputs[0].size, 1, 1, 0)]
    check(driver.cuLaunchKernel(function, *shape, ctypes.c_void_p(0), pointers, ctypes.c_void_p(0)))
    torch.cuda.synchronize()
    result.view(np.uint8)[:] = tensors[-1].cpu().numpy()
    check(driver.cuModuleUnload(module))


@pytest.mark.parametrize("case", ALL, ids=str)
def test_the_gpu_agrees(case: Case) -> None:
    arrays = values(case, seed=1)
    ours = elementwise(case.instruction, arrays, case.out)
    gpu = np.zeros_like(ours)
    on_gpu(elementwise_module(case.instruction, arrays, case.out, "sm_80"), arrays, gpu)
    np.testing.assert_array_equal(ours.view(f"u{ours.itemsize}"), gpu.view(f"u{gpu.itemsize}"))
