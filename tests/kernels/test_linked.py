"""Kernels linked into one library: opened without the DSL, they launch what they would have.

A stand-in for the CUDA runtime, compiled here, writes down what it is asked for.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from layoutconv.kernels.compile import linked
from layoutconv.kernels.compile.store import ENTRY
from layoutconv.kernels.pointwise.pack_lines import build
from tools.ptx_sim import DeviceTensor, launch_of, parse

pytestmark = pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler")

CUDART = """
#include <stdint.h>
#include <stdio.h>
typedef struct { uint32_t grid[3], block[3]; size_t shared; void *stream, *attributes;
                 uint32_t count; } config_t;
int cudaGetDeviceCount(int *count) { *count = 1; return 0; }
int cudaGetDevice(int *device) { *device = 0; return 0; }
int cudaSetDevice(int device) { return 0; }
int cudaDeviceGetAttribute(int *value, int which, int device) { *value = 1 << 20; return 0; }
int cudaLibraryLoadData(void **library, const char *code) { *library = (void *)1; return 0; }
int cudaLibraryGetKernel(void **kernel, void *library, const char *name) {
  *kernel = (void *)1; return 0; }
int cudaLibraryUnload(void *library) { return 0; }
int cudaKernelSetAttributeForDevice() { return 0; }
int cudaFuncSetAttribute() { return 0; }
const char *cudaGetErrorName(int error) { return "cudaErrorOfThisTest"; }
const char *cudaGetErrorString(int error) { return error == 7 ? "the seventh" : "another"; }
static int attribute(int *value, int which, void *kernel, int device) { *value = 1024; return 0; }
int cudaGetDriverEntryPointByVersion(const char *name, void **function, unsigned version,
                                     unsigned long long flags, int *status) {
  *function = (void *)attribute; if (status) *status = 0; return 0; }
int cudaDriverGetVersion(int *version) { *version = 13000; return 0; }
int cudaGetLastError(void) { return 0; }
int result = 0;
int cudaLaunchKernelExC(const config_t *c, const void *kernel, void **arguments) {
  printf("[[%u, %u, %u], [%u, %u, %u], %zu]\\n", c->grid[0], c->grid[1], c->grid[2],
         c->block[0], c->block[1], c->block[2], c->shared);
  fflush(stdout);
  return result;
}
"""
PROGRAM = """
import ctypes, sys

cudart = ctypes.CDLL(sys.argv[1], mode=ctypes.RTLD_GLOBAL)
sys.modules["cutlass"] = None  # whoever imports it is refused
from layoutconv.kernels.compile import linked
from tools.ptx_sim import DeviceTensor

linked.share_cuda_runtime()
get = linked.opened(open(sys.argv[2], "rb").read())
for name, length in (("a" * 64, 4096), ("b" * 64, 8192)):
    source, target = (DeviceTensor(at, (length,), "int16") for at in (1 << 20, 1 << 24))
    get(name)(source, target, (16, 4, 4, 0, 4, 4))
ctypes.c_int.in_dll(cudart, "result").value = 7
try:
    get("a" * 64)(source, target, (16, 4, 4, 0, 4, 4))
except Exception as error:
    print(str(error))
try:
    get("a" * 64)(source)
except TypeError as error:
    print("Expects 3 parameters" in str(error))
"""
NUMBERS = (16, 4, 4, 0, 4, 4)
# No Python is in this process.
IN_CPP = """
#include <tvm/ffi/container/array.h>
#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/extra/module.h>
namespace ffi = tvm::ffi;
static void pack_lines(ffi::Module library, const char *name, int64_t length) {
  int64_t step = 1;
  DLTensor source{(void *)(1 << 20), {kDLCUDA, 0}, 1, {kDLInt, 16, 1}, &length, &step, 0};
  DLTensor target = source;
  target.data = (void *)(1 << 24);
  library->GetFunction(name).value()(&source, &target, ffi::Array<int64_t>{16, 4, 4, 0, 4, 4});
}
int main(int count, char **given) {
  ffi::Module library = ffi::Module::LoadFromFile(given[1]);
  pack_lines(library, given[2], 4096);
  pack_lines(library, given[3], 8192);
}
"""


class Made(NamedTuple):
    """A library, the stand-in for the CUDA runtime, and the launches of its kernels."""

    library: Path
    cudart: Path
    launches: list[list[Any]]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    folder = tmp_path_factory.mktemp("linked")
    objects, expected = {}, []
    for name, vector, length in (("a" * 64, 4, 4096), ("b" * 64, 1, 8192)):
        with tempfile.TemporaryDirectory() as dump:
            function = build(2, vector, "sm_80", dump=dump)
            source, target = (
                DeviceTensor(address, (length,), "int16") for address in (1 << 20, 1 << 24)
            )
            launch = launch_of(parse(function.__ptx__), function, source, target, NUMBERS)
        expected.append([list(launch.grid), list(launch.block), launch.shared_bytes])
        path = folder / "kernel.o"
        function.export_to_c(str(path), function_name=ENTRY)
        objects[name] = path.read_bytes()
    assert expected[0] != expected[1]
    library, cudart = folder / "kernels.so", folder / "libcudart_stand_in.so"
    library.write_bytes(linked.link(objects))
    (folder / "cudart.c").write_text(CUDART)
    command = ["cc", "-shared", "-fPIC", "-w", "-o", str(cudart), str(folder / "cudart.c")]
    subprocess.run(command, check=True)
    return Made(library, cudart, expected)


def test_they_launch_as_the_compiled_ones_do(made: Made) -> None:
    ran = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(made.cudart), str(made.library)],
        capture_output=True, text=True, check=False, cwd=Path(__file__).parents[2],
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    first, second, failing, message, checked = ran.stdout.splitlines()
    assert [json.loads(first), json.loads(second)] == made.launches
    assert json.loads(failing)[1:] == made.launches[0][1:]
    assert message == "cudaErrorOfThisTest: the seventh"
    assert checked == "True"


@pytest.mark.skipif(shutil.which("c++") is None, reason="no C++ compiler")
def test_they_launch_from_a_program_in_cpp(made: Made, tmp_path: Path) -> None:
    import tvm_ffi

    (tmp_path / "main.cpp").write_text(IN_CPP)
    program, runtime = tmp_path / "program", Path(tvm_ffi.libinfo.find_libtvm_ffi())
    headers = {tvm_ffi.libinfo.find_include_path(), tvm_ffi.libinfo.find_dlpack_include_path()}
    subprocess.run(
        ["c++", "-std=c++17", "-O0", *(f"-I{folder}" for folder in headers),
         "-Wl,--no-as-needed", "main.cpp", str(runtime), str(made.cudart),
         f"-Wl,-rpath,{runtime.parent}:{made.cudart.parent}",
         "-o", str(program)],
        cwd=tmp_path, check=True,
    )  # fmt: skip
    names = [linked.short_name(letter * 64) for letter in "ab"]
    ran = subprocess.run(
        [program, made.library, *names], capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    assert [json.loads(line) for line in ran.stdout.splitlines()] == made.launches


def test_no_compiler_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setenv("PATH", "")
    with pytest.raises(FileNotFoundError, match=r"a C compiler has to link .* none of cc, gcc"):
        linked.link({"a" * 64: b""})


def test_two_kernels_of_one_name_are_refused() -> None:
    with pytest.raises(RuntimeError, match="two kernels have one short name"):
        linked.link({"a" * 64: b"", "a" * 63 + "b": b""})
