"""int4 in the machine: bytes come as those of int8 do, and one instruction multiplies their pairs.

No GPU of the project has that instruction: its fragments are in ``tools/ptx_sim``, and machine code
of it here.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from layoutconv.conv import ConvProblem, fprop_view, gather_fprop_view, interleaved
from layoutconv.planning.tile import TileConfig
from layoutconv.sparse import kernel_map_view
from layoutconv.tensors.epilogue_in_torch import apply_steps, convert
from layoutconv.tensors.packed_int4 import in_pairs, pack_int4
from layoutconv.view.epilogue import Activation, Bias, Clamp, Epilogue, Residual, Scale
from layoutconv.view.gemm_view import GemmView

from ..grid_cover import with_deep
from .launcher import (
    Case,
    Kind,
    Ran,
    check_exact,
    compile_view,
    compiled_view,
    integers,
    reference,
    run_case,
    tile_of,
    unspilled,
)

INT4 = Kind("int4", torch.int8, torch.int32)


def case_of(view: GemmView, out: torch.dtype = torch.int32) -> Case:
    """Numbers of int4 in int8."""
    case = Case.of(view, torch.int8, out)
    generator = torch.Generator().manual_seed(0)
    for tensor in (case.a, case.b):
        tensor.copy_(torch.randint(-8, 8, tensor.shape, generator=generator))
    return case


def ran(case: Case, number: int = 0, **rest: Any) -> Ran:
    """A kernel on the packed data of a case."""
    packed = Case(in_pairs(case.view), pack_int4(case.a), pack_int4(case.b), case.out)
    packed.epilogue = case.epilogue
    compiled = packed.compiled(tile_of(number, INT4), kind="int4")
    return run_case(packed, compiled, **rest)


# Bytes of a cell: vectors of 1 (through registers), 2, 4, 8 and 16 of them.
@pytest.mark.parametrize("C", with_deep([2, 6, 12, 40, 48, 160, 256], 6, 48, 160))
def test_fprop_with_channels_of_every_vector(C: int) -> None:
    view = fprop_view(ConvProblem((2, 5, 7, C), (40, 3, 2), stride=(1, 2), padding=1))
    case = case_of(view)
    check_exact(case, ran(case, C // 2))


def index(*shape: int, rows: int) -> Tensor:
    return torch.randint(-1, rows, shape, generator=torch.Generator().manual_seed(0)).int()


VIEWS = {
    "3-D": fprop_view(ConvProblem((1, 3, 5, 4, 16), (7, 2, 3, 3), dilation=(1, 2, 1), padding=2)),
    "groups": fprop_view(ConvProblem((2, 9, 24), (21, 3), padding=1, groups=3)),
    "few columns": fprop_view(ConvProblem((1, 70, 64), (1, 3), padding=1)),
    "many taps": fprop_view(ConvProblem((1, 9, 9, 8), (24, 9, 9), padding=4)),
    "gathered cells": gather_fprop_view(
        ConvProblem((1, 6, 7, 16), (24, 3, 3), padding=1), index(42, rows=30), None, in_rows=30
    ),
    "kernel map": kernel_map_view(index(50, 27, rows=40), 32, 24),
    "interleaved": fprop_view(
        ConvProblem((1, 5, 6, 128), (16, 3, 3), padding=1),
        activation_layout=interleaved((1, 5, 6, 128), 64),
    ),
}


@pytest.mark.parametrize("name", with_deep(VIEWS, "few columns", "gathered cells"))
def test_views_of_every_kind(name: str) -> None:
    case = case_of(VIEWS[name])
    check_exact(case, ran(case, len(name)))


def test_starts_of_tensors_that_are_aligned_to_little() -> None:
    view = fprop_view(ConvProblem((2, 9, 64), (24, 3), padding=1))
    case = case_of(view)
    packed = Case(in_pairs(view), pack_int4(case.a), pack_int4(case.b), case.out)
    compiled = compiled_view(
        packed.view, torch.int8, tile_of(1, INT4), "sm_80", torch.int32, kind="int4",
        aligned=(4, 1, 8),
    )  # fmt: skip
    assert compiled.spec.vectors == (4, 1, 2)
    check_exact(case, run_case(packed, compiled, shift=(4, 1, 8)))


def test_sums_are_exact_up_to_the_greatest_and_saturate_in_int8() -> None:
    view = fprop_view(ConvProblem((1, 40, 512), (24, 3)))
    case = case_of(view)
    case.a.fill_(-8)
    case.b[::2], case.b[1::2] = -8, 7
    out = ran(case).out
    assert (out[..., ::2] == 64 * 512 * 3).all()
    assert (out[..., 1::2] == -56 * 512 * 3).all()
    case.out = case.out.to(torch.int8)
    saturated = ran(case).out
    assert (saturated[..., ::2] == 127).all()
    assert (saturated[..., 1::2] == -128).all()
    check_exact(case, ran(case))


@pytest.mark.parametrize("out", [torch.int8, torch.int32, torch.float16, torch.float32], ids=str)
def test_results_of_every_type_with_an_epilogue(out: torch.dtype) -> None:
    case = case_of(fprop_view(ConvProblem((2, 5, 6, 32), (40, 3, 2), padding=1)), out)
    check_exact(case, ran(case, 1))
    residual = integers(tuple(case.out.shape), torch.float32, 7)
    steps = (
        Scale(0.25),
        Scale(integers((40,), torch.float32, 5)),
        Bias(integers((40,), torch.float32, 6)),
        Residual(residual, 2.0),
        Activation("relu"),
        Clamp(0.0, 500.0),
    )
    case.epilogue = Epilogue(steps)
    sums, _ = reference(case)
    want = apply_steps(steps, sums.view(-1, 40), slice(None), [residual.double().view(-1, 40)])
    got = ran(case, 1).out
    assert torch.equal(got.view(-1, 40), convert(want, out))
    assert got.float().max() > 100


@pytest.mark.parametrize("arch", ["sm_80", "sm_86", "sm_89"])
@pytest.mark.parametrize(
    "shape",
    [(128, 64, 2, 2), pytest.param((256, 64, 4, 1), marks=pytest.mark.deep), (256, 128, 4, 2)],
    ids=str,
)
@pytest.mark.chessboard
def test_machine_code_multiplies_on_tensor_cores(
    arch: str, shape: tuple[int, int, int, int]
) -> None:
    m, n, warps_m, warps_n = shape
    tile = TileConfig((m, n, 64), (warps_m, warps_n))
    view = in_pairs(fprop_view(ConvProblem((1, 6, 6, 256), (n, 3, 3), padding=1)))
    compiled = compile_view(view, torch.int8, tile, arch, torch.int32, kind="int4")
    kernel = unspilled(compiled)
    instruction = "mma.sync.aligned.m16n8k64.row.col.s32.s4.s4.s32"
    steps = m // 16 * (n // 8) * 2 // (warps_m * warps_n)
    assert kernel.opcodes["IMMA"] == compiled.ptx.count(instruction) == steps
