"""Problems that mutations of the template are run on: each has what some guards are for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from layoutconv.algebra import make_ordered_layout
from layoutconv.conv import ConvProblem, dgrad_views, fprop_view, gather_fprop_view, wgrad_view
from layoutconv.planning.tile import TileConfig
from layoutconv.sparse import kernel_map_view
from layoutconv.tensors.epilogue_in_torch import apply_steps, convert
from layoutconv.view.epilogue import Bias, Epilogue, Residual
from layoutconv.view.gemm_view import GemmView

from .launcher import (
    KINDS,
    Case,
    Compiled,
    Kind,
    half_line,
    integers,
    reference,
    run_case,
)


def dense() -> GemmView:
    """Padding, rows and columns that no tile divides, two k-tiles in every tap."""
    return fprop_view(ConvProblem((1, 7, 11, 64), (40, 2, 3), padding=1))


def straddling() -> GemmView:
    """K-tiles that lie in several taps, and a last one that is not full."""
    return fprop_view(ConvProblem((1, 7, 11, 24), (40, 2, 3), padding=1))


def long_filter() -> GemmView:
    """More taps than a mask has bits: coordinates are compared."""
    return fprop_view(ConvProblem((1, 75, 16), (8, 70), padding=5))


def large_filter() -> GemmView:
    """More taps than a mask has bits, but not more values of their digits."""
    return fprop_view(ConvProblem((1, 4, 7, 16), (8, 7, 10), padding=5))


def grid() -> GemmView:
    """Gathered and scattered through indices with absent entries, of rows in another order."""
    cells = torch.randperm(77, generator=torch.Generator().manual_seed(0)).int()
    cells[::5] = -1
    return gather_fprop_view(
        ConvProblem((1, 7, 11, 64), (40, 2, 3), padding=((0, 1), 1)), cells, cells, out_rows=77
    )


def neighbours() -> GemmView:
    """A kernel map with absent entries, and with rows that do not exist."""
    generator = torch.Generator().manual_seed(0)
    entries = torch.randint(-30, 99, (77, 3), generator=generator, dtype=torch.int32)
    return kernel_map_view(entries.T.contiguous().T, 64, 40, kernel_size=(3,), in_rows=77)


def one_tap() -> GemmView:
    """Five k-tiles, all of them full."""
    return fprop_view(ConvProblem((1, 40, 160), (40, 1)))


def weights() -> GemmView:
    """A sum over voxels in the rows of both operands; its last k-tile is not full."""
    return wgrad_view(ConvProblem((2, 7, 5, 40), (24, 2, 3), padding=1))


def residue() -> GemmView:
    """Taps of which the first is not the filter's first, K side by side in the filter."""
    problem = ConvProblem((1, 11, 16), (24, 3), stride=2, padding=1)
    filter_layout = make_ordered_layout(problem.stored_filter, (0, 1, 2))
    return next(view for view in dgrad_views(problem, filter_layout) if view.b.offset)


def groups() -> GemmView:
    """Three groups, of columns that no tile divides."""
    return fprop_view(ConvProblem((1, 7, 24), (120, 3), padding=1, groups=3))


def images() -> GemmView:
    """Rows that run over images first: tiles have taps in common, and lack the others."""
    return dgrad_views(ConvProblem((70, 3, 4, 64), (64, 2, 4)), images_first=True)[0]


def cloud_of_40_taps() -> GemmView:
    """Rows that have two of 40 taps, one of each word; every 16 rows have others."""
    index = torch.full((40, 150), -1, dtype=torch.int32)
    for row in range(150):
        index[row // 16, row], index[32 + row // 16 % 8, row] = row, 149 - row
    return kernel_map_view(index.T, 32, 32, kernel_size=(40,))


def bias(view: GemmView, case: Case) -> Epilogue:
    return Epilogue((Bias(integers((view.n,), torch.float32, 3)),))


def bias_and_statistics(view: GemmView, case: Case) -> Epilogue:
    return Epilogue(bias(view, case).steps, statistics=True)


def residual(view: GemmView, case: Case) -> Epilogue:
    return Epilogue((Residual(integers(tuple(case.out.shape), torch.float16, 3)),))


def statistics(view: GemmView, case: Case) -> Epilogue:
    return Epilogue(statistics=True)


@dataclass(frozen=True)
class Problem:
    """The view and the options that a kernel is compiled for and runs with."""

    view: Callable[[], GemmView]
    kind: Kind = KINDS[0]
    out: torch.dtype = torch.float16
    epilogue: Callable[[GemmView, Case], Epilogue] | None = None
    split: str = ""
    splits: int = 1
    skip: bool = False
    n: int = 64  # of the tile

    def case(self) -> Case:
        view = self.view()
        case = Case.of(view, self.kind.dtype, self.out)
        if self.epilogue:
            case.epilogue = self.epilogue(view, case)
        if self.split == "atomic":
            case.out.zero_()
        return case

    def compile(self, compile_: Any) -> Compiled:
        case = self.case()
        tile = TileConfig((64, self.n, half_line(self.kind.dtype)), (4, 2))
        return compile_(
            case.view, self.kind.dtype, tile, self.kind.arch, self.out,
            kind=self.kind.name, epilogue=case.epilogue.structure, split=self.split,
            skip=self.skip,
        )  # fmt: skip

    def check(self, compiled: Compiled) -> None:
        """Raises where a kernel is wrong."""
        case = self.case()
        if self.kind.name == "tfloat32":
            powers = case.a.sign() * 2.0 ** case.a.abs()
            case.a = powers * ABOVE_A_TIE
            ran = run_case(case, compiled)
            case.a = powers * ROUNDED
        elif self.kind.name == "float32":
            case.a = case.a * (1 + 2.0**-14)  # more bits than tf32 has
            case.b = case.b * (1 + 2.0**-14)
            ran = run_case(case, compiled)
            want, written = reference(case)
            assert torch.equal(ran.written, written)
            torch.testing.assert_close(ran.out.double(), want, rtol=0, atol=1e-3)
            return
        else:
            ran = run_case(case, compiled, splits=self.splits)
        if self.split:
            want, _ = reference(case)
            got = ran.out if self.split == "atomic" else ran.out.sum(0)
            assert torch.equal(got.double(), want)
            return
        if ran.statistics is not None:
            stored = torch.where(ran.written, ran.out, 0.0).double().view(-1, case.view.n)
            want = torch.stack([stored.sum(0), stored.square().sum(0)])
            assert torch.equal(ran.statistics.double().sum(0), want)
        sums, written = reference(case)
        assert torch.equal(ran.written, written)
        columns = case.view.l * case.view.n
        want = apply_steps(
            case.epilogue.steps, sums.view(-1, columns), slice(None),
            [source.double().view(-1, columns) for source in case.epilogue.sources],
        )  # fmt: skip
        want = convert(want, self.out).double().view(sums.shape)
        assert torch.equal(ran.out.double()[written], want[written])


BY_NAME = {kind.name: kind for kind in KINDS}
FP32 = {"kind": BY_NAME["tfloat32"], "out": torch.float32}
PROBLEMS = {
    "dense": Problem(dense),
    "dense fp32": Problem(dense, **FP32),
    "dense three products": Problem(dense, BY_NAME["float32"], torch.float32),
    "dense int8": Problem(dense, BY_NAME["int8"], torch.int8),
    "straddling": Problem(straddling),
    "large_filter": Problem(large_filter),
    "long_filter": Problem(long_filter),
    "grid": Problem(grid),
    "grid statistics": Problem(grid, epilogue=statistics),
    "grid statistics of shared rows": Problem(grid, epilogue=statistics, n=32),
    "grid statistics by row": Problem(grid, out=torch.float32, epilogue=statistics),
    "neighbours": Problem(neighbours),
    "weights": Problem(weights),
    "weights fp32": Problem(weights, **FP32),
    "weights in parts": Problem(weights, out=torch.float32, split="partial", splits=3),
    "weights in one": Problem(weights, out=torch.float32, split="atomic", splits=3),
    "one tap in parts": Problem(one_tap, out=torch.float32, split="partial", splits=3),
    "residue": Problem(residue),
    "groups": Problem(groups),
    "dense bias": Problem(dense, epilogue=bias),
    "dense bias and statistics": Problem(dense, epilogue=bias_and_statistics),
    "skipping": Problem(images, skip=True),
    "skipping map": Problem(cloud_of_40_taps, skip=True),
    "dense residual": Problem(dense, epilogue=residual),
    "grid residual": Problem(grid, epilogue=residual),
}
ABOVE_A_TIE = 1 + 2**-11 + 2**-13  # tf32 nearest to it is ROUNDED; truncated, it is 1
ROUNDED = 1 + 2**-10
