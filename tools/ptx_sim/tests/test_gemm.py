"""A whole CuTe DSL kernel: right as compiled, and every fault planted in its PTX is caught."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest

from layoutconv.kernels.compile.cubin import CubinKernel, read_cubin

from .. import (
    DataRace,
    DeviceTensor,
    Fault,
    InFlight,
    Memory,
    OutOfBounds,
    UnsupportedInstruction,
    launch_of,
    parse,
)
from .planted import Planted, each, edit, multiply

cutlass = pytest.importorskip("cutlass")


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Any:
    from .dsl_kernels import compile_gemm

    return compile_gemm(str(tmp_path_factory.mktemp("dumps")))


def run_gemm(
    compiled: Any, ptx: str, m: int = 100, n: int = 72, k: int = 192, **options: Any
) -> tuple[np.ndarray, np.ndarray]:
    """D as the kernel computes it and as it should be."""
    return multiply(compiled, ptx, m, n, k, **options)[:2]


@pytest.mark.parametrize(
    "options", [{}, {"independent": False}, {"late": False}, {"seed": 7}], ids=str
)
@pytest.mark.parametrize("shape", [(64, 64, 32), (100, 72, 96), (1, 1, 160)])
def test_the_kernel_multiplies(
    compiled: Any, shape: tuple[int, int, int], options: dict[str, Any]
) -> None:
    got, want = run_gemm(compiled, compiled.__ptx__, *shape, **options)
    np.testing.assert_allclose(got, want, atol=0.02, rtol=2e-3)


def test_counts_are_those_of_the_algorithm_whoever_runs_first(compiled: Any) -> None:
    m, n, k = 100, 72, 96
    counts = [
        multiply(compiled, compiled.__ptx__, m, n, k, independent=independent, seed=seed)[2]
        for independent, seed in ((True, 0), (True, 1), (False, 0))
    ]
    assert counts[0].opcodes == counts[1].opcodes == counts[2].opcodes
    ctas, warps, k_tiles = 2 * 2, 4, k // 32
    # A warp has 32 x 32 of a tile's 64 x 64 outputs: per k-tile 2 x 4 x 2 products of 16 x 8 x 16.
    assert counts[0].count("mma.sync") == ctas * warps * k_tiles * 16
    assert counts[0].count("bar.sync") == ctas * warps * k_tiles


PLANTED = [
    ("a wait too lax", r"cp\.async\.wait_group\s+1;", "cp.async.wait_group 2;", InFlight),
    ("no wait", r"cp\.async\.wait_group\s+1;", "", InFlight),
    ("no barrier", r"bar\.sync\s+0;", "", Fault),
    ("a copy not committed", r"cp\.async\.commit_group;\s+setp", "setp", InFlight),
    ("a copy without its predicate", r"(cp\.async\.ca[^;]*16), %r\d+;", r"\1;", OutOfBounds),
    ("a store without its predicate", r"@%p\d+ bra\s+\$L__BB0_1[1-9];", "", Fault),
    ("a stage too few", r"(setp\.eq\.b32\s+%p\d+, %r\d+), 3;", r"\1, 2;", Fault),
    (
        "a store where another thread stores",
        r"(st\.global\.b16\s+\[%rd\d+)\+2\]",
        r"\1+4]",
        DataRace,
    ),
]


@each(PLANTED)
@pytest.mark.parametrize("independent", [True, False])
def test_planted_faults_are_caught(compiled: Any, planted: Planted, independent: bool) -> None:
    planted.is_caught(compiled.__ptx__, partial(run_gemm, compiled, independent=independent))


def test_a_wrong_number_is_seen_in_the_result(compiled: Any) -> None:
    # What breaks no rule of the machine shows in the numbers: here one operand's other half.
    broken = edit(compiled.__ptx__, r"(ldmatrix[^;]*\[%r\d+)\+2048\]", r"\1]", count=1)
    got, want = run_gemm(compiled, broken)
    assert not np.allclose(got, want, atol=0.02, rtol=2e-3)


def test_an_instruction_of_the_future_is_refused(compiled: Any) -> None:
    newer = edit(compiled.__ptx__, r"bar\.sync\s+0;", "tcgen05.fence::before_thread_sync;")
    with pytest.raises(UnsupportedInstruction, match="tcgen05"):
        run_gemm(compiled, newer)


def test_the_host_code_checks_its_arguments(compiled: Any) -> None:
    memory = Memory()
    address = memory.add(np.zeros((64, 64), np.float16))
    tensors = [DeviceTensor(address, shape, "float16") for shape in ((64, 32), (64, 32), (60, 64))]
    with pytest.raises(ValueError, match=r"d\.shape\[0\]"):
        launch_of(parse(compiled.__ptx__), compiled, *tensors, 0)


def test_the_host_code_gives_grid_and_shared_memory(compiled: Any) -> None:
    memory = Memory()
    address = memory.add(np.zeros((300, 96), np.float16))
    shapes = (300, 96), (65, 96), (300, 65)
    tensors = [DeviceTensor(address, shape, "float16") for shape in shapes]
    launch = launch_of(parse(compiled.__ptx__), compiled, *tensors, 0)
    assert (launch.grid, launch.block) == ((5, 2, 1), (128, 1, 1))
    assert launch.shared_bytes == 2 * 3 * 64 * 32 * 2
    pointer, *extents = np.frombuffer(launch.arguments[0], np.int32)[[0, 2, 3]]
    assert extents == [300, 96]
    assert int.from_bytes(launch.arguments[0][:8], "little") == address, pointer


def test_the_cubin_has_what_the_ptx_asks_for(compiled: Any) -> None:
    (kernel,) = read_cubin(compiled.__cubin__).values()
    assert isinstance(kernel, CubinKernel)
    assert kernel.name == parse(compiled.__ptx__).name
    ptx = compiled.__ptx__
    for mnemonic, opcode in (
        ("HMMA", "mma.sync"), ("LDSM", "ldmatrix"), ("LDGSTS", "cp.async.ca"),
        ("STG", "st.global"), ("BAR", "bar.sync"),
    ):  # fmt: skip
        assert kernel.opcodes[mnemonic] == ptx.count(opcode)
    assert kernel.opcodes["LDL"] == kernel.opcodes["STL"] == kernel.stack == 0
    assert 32 <= kernel.registers <= 255
    assert kernel.instructions > sum(kernel.opcodes.values()) > 100


def test_what_is_not_a_cubin() -> None:
    with pytest.raises(ValueError, match="not an ELF file"):
        read_cubin(b"//" + bytes(100))
