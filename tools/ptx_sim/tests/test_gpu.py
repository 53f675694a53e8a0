"""A GPU, if there is one, gives the same bits as the simulator, instruction by instruction."""

from __future__ import annotations

import ctypes
from dataclasses import replace

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from ..tensor_map import SIZE, TensorMap, decode
from .cases import ALL, Case, values
from .snippets import elementwise, elementwise_module
from .tensor_cases import (
    IM2COL,
    MULTICAST,
    STORED,
    THREADS,
    TILED,
    BoxCase,
    expected,
    expected_of_both,
    load_module,
    multicast_module,
    store_module,
    stored,
    tensor,
)

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")
hopper = pytest.mark.skipif(
    not torch.cuda.is_available() or torch.cuda.get_device_capability() < (9, 0),
    reason="tensor maps begin with compute capability 9.0",
)


def driver() -> ctypes.CDLL:
    """The driver; torch has started it."""
    torch.cuda.synchronize()
    return ctypes.CDLL("libcuda.so.1")


def check(status: int) -> None:
    assert status == 0, f"CUDA driver error {status}"


def launch(ptx: str, threads: int, buffers: list[torch.Tensor], ctas: int = 1) -> None:
    """Run the module's ``snippet``; its parameters are the addresses of buffers."""
    cuda = driver()
    module, function = ctypes.c_void_p(), ctypes.c_void_p()
    check(cuda.cuModuleLoadData(ctypes.byref(module), ctypes.c_char_p(ptx.encode())))
    check(cuda.cuModuleGetFunction(ctypes.byref(function), module, ctypes.c_char_p(b"snippet")))
    addresses = [ctypes.c_uint64(x.data_ptr()) for x in buffers]
    pointers = (ctypes.c_void_p * len(addresses))(*(ctypes.addressof(a) for a in addresses))
    shape = [ctypes.c_uint(n) for n in (ctas, 1, 1, threads, 1, 1, 0)]
    check(cuda.cuLaunchKernel(function, *shape, ctypes.c_void_p(0), pointers, ctypes.c_void_p(0)))
    torch.cuda.synchronize()
    check(cuda.cuModuleUnload(module))


def on_gpu(array: NDArray) -> torch.Tensor:
    return torch.from_numpy(array.view(np.uint8)).cuda()


@pytest.mark.parametrize("case", ALL, ids=str)
def test_the_gpu_agrees(case: Case) -> None:
    arrays = values(case, seed=1)
    ours = elementwise(case.instruction, arrays, case.out)
    buffers = [on_gpu(x) for x in (*arrays, np.zeros_like(ours))]
    ptx = elementwise_module(case.instruction, arrays, case.out, "sm_80")
    launch(ptx, arrays[0].size, buffers)
    gpu = buffers[-1].cpu().numpy()
    np.testing.assert_array_equal(ours.view(np.uint8), gpu)


# The driver's numbers of the types, from cuda.h.
_TYPES = {
    "u8": 0, "u16": 1, "u32": 2, "s32": 3, "u64": 4, "s64": 5, "f16": 6, "f32": 7, "f64": 8,
    "bf16": 9, "tf32": 11,
}  # fmt: skip
_SWIZZLES = {16: 0, 32: 1, 64: 2, 128: 3}
_LINES_OF_128_BYTES = 2


def driver_map(of: TensorMap) -> NDArray[np.uint8]:
    """The tensor map as the driver makes it."""
    raw = np.zeros(SIZE + 64, np.uint8)
    raw = raw[-raw.ctypes.data % 64 :][:SIZE]
    rank = of.rank
    shape, strides = (ctypes.c_uint64 * rank)(*of.shape), (ctypes.c_uint64 * rank)(*of.strides)
    steps = (ctypes.c_uint32 * rank)(*of.element_strides)
    start = [
        ctypes.c_void_p(raw.ctypes.data), ctypes.c_int(_TYPES[of.type]), ctypes.c_uint32(rank),
        ctypes.c_void_p(of.address), shape, strides,
    ]  # fmt: skip
    numbers = (0, _SWIZZLES[of.swizzle], _LINES_OF_128_BYTES, 0)
    end = [steps, *map(ctypes.c_int, numbers)]
    if of.im2col is None:
        box = (ctypes.c_uint32 * rank)(*of.box)
        check(driver().cuTensorMapEncodeTiled(*start, box, *end))
    else:
        corners = [(ctypes.c_int * 3)(*c) for c in (of.im2col.lower, of.im2col.upper)]
        column = ctypes.c_uint32(of.im2col.channels), ctypes.c_uint32(of.im2col.pixels)
        check(driver().cuTensorMapEncodeIm2col(*start, *corners, *column, *end))
    return raw


@hopper
@pytest.mark.parametrize("case", TILED + IM2COL, ids=str)
def test_the_driver_makes_the_same_map(case: BoxCase) -> None:
    source = on_gpu(tensor(case))
    of = replace(case.map, address=source.data_ptr())
    raw = driver_map(of)
    assert decode(raw.tobytes()) == of
    # All bits but the hints behind the type and its modes, and one that only compilers set.
    ours, theirs = (np.frombuffer(bytes(x), np.uint32).copy() for x in (of.encode(), raw))
    ours[2], theirs[2] = ours[2] & 0x1FFFD, theirs[2] & 0x1FFFD
    np.testing.assert_array_equal(ours[:16], theirs[:16])


@hopper
@pytest.mark.parametrize("case", TILED + IM2COL, ids=str)
def test_the_gpu_loads_the_same_box(case: BoxCase) -> None:
    memory = tensor(case)
    source, result = on_gpu(memory), on_gpu(np.zeros(case.bytes, np.uint8))
    raw = on_gpu(driver_map(replace(case.map, address=source.data_ptr())))
    launch(load_module(case), THREADS, [raw, result])
    np.testing.assert_array_equal(result.cpu().numpy(), expected(case, memory))


@hopper
@pytest.mark.parametrize("case", STORED, ids=str)
def test_the_gpu_stores_the_same_box(case: BoxCase) -> None:
    memory = tensor(case)
    box = np.random.default_rng(1).integers(1, 256, case.bytes).astype(np.uint8)
    target, source = on_gpu(memory), on_gpu(box)
    raw = on_gpu(driver_map(replace(case.map, address=target.data_ptr())))
    launch(store_module(case), THREADS, [raw, source])
    np.testing.assert_array_equal(target.cpu().numpy(), stored(case, box, memory))


@hopper
@pytest.mark.parametrize("case", MULTICAST, ids=str)
def test_the_gpu_loads_to_both_ctas(case: BoxCase) -> None:
    memory = tensor(case)
    want = expected_of_both(case, memory)
    source, result = on_gpu(memory), on_gpu(np.zeros_like(want))
    raw = on_gpu(driver_map(replace(case.map, address=source.data_ptr())))
    launch(multicast_module(case), THREADS, [raw, result], ctas=2)
    np.testing.assert_array_equal(result.cpu().numpy(), want)
