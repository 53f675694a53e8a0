"""A matrix product of gathered rows, scattered to rows: CUTLASS's example 52 as a GEMM view.

    python examples/gather_gemm_scatter.py [--device cuda] [--output gather_gemm_scatter.svg]

    D[scatter[i], :] = A[gather[i], :] @ B          rows
    D[:, scatter[j]] = A @ B[:, gather[j]]          columns

An index buffer is one more map between the product and memory, so nothing is copied before or
after the product. Kernels take an index buffer for the rows of A, the rows of D and the columns of
B. Only the CPU executor scatters columns of D.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from support.command_line import parsed, program
from torch import Tensor

import layoutconv as lc
from layoutconv import ComposedLayout, CustomStride, E, GemmView, IndexedGather, Layout
from layoutconv.drawing import Figure, draw
from layoutconv.view.operands import runtime, static

ROWS, COLUMNS, K = 300, 160, 96  # A is (ROWS, K), B (K, COLUMNS)
M, N = 200, 64  # rows and columns that are gathered
BOUND = {"cpu": 1e-6, "cuda": 1e-3}  # on relative errors; a GPU multiplies fp32 as tf32


@dataclass(frozen=True, eq=False)
class Index:
    """Which rows or columns are read, and where the results go; None for all, in order."""

    gather: Tensor | None = None
    scatter: Tensor | None = None

    def count(self, of: int) -> int:
        """Rows of the product."""
        return of if self.gather is None else len(self.gather)

    def stored(self, of: int) -> int:
        """Rows of D."""
        return self.count(of) if self.scatter is None else of


@dataclass(frozen=True, eq=False)
class Mode:
    """A mode of a matrix: its extent in the product, in memory, the stride there, and an index."""

    extent: Any
    stored: Any
    stride: Any
    index: Tensor | None = None


def main(arguments: Sequence[str] | None = None) -> int:
    """Multiply through indices on rows, on columns, on both; 1 if a result is wrong, else 0."""
    parser = program(__file__, __doc__, "--device cuda", device="cpu", picture=".svg")
    options = parsed(parser, arguments)
    device = options.device
    generator = torch.Generator().manual_seed(0)

    def some(count: int, of: int) -> Tensor:
        return torch.randperm(of, generator=generator)[:count].int().to(device)

    a = torch.randn(ROWS, K, generator=generator).to(device)
    b = torch.randn(K, COLUMNS, generator=generator).to(device)
    gather, scatter = some(M, ROWS), some(M, ROWS)
    # A row that is named twice is read twice; -1 is a row of zeros, and is not written.
    gather[1], gather[2], scatter[3] = gather[0], -1, -1
    rows, columns = Index(gather, scatter), Index(some(N, COLUMNS), some(N, COLUMNS))

    passed = True
    for name, i, j in (
        ("rows", rows, Index()),
        ("rows, and columns of B", rows, Index(columns.gather)),
        ("columns", Index(), columns),
        ("rows and columns", rows, columns),
    ):
        view = view_of(i, j)
        print(f"\n{name}\n{view}")
        if device != "cpu" and j.scatter is not None:
            print("scattered columns: on the CPU alone")
            continue
        d = torch.full((i.stored(ROWS), j.stored(COLUMNS)), torch.nan, device=device)
        # An index is on the first mode of a tensor: columns are the rows of the transposed one.
        by_columns = j.scatter is not None and i.scatter is None
        lc.execute(view, a, b.T, d.T if by_columns else d)
        passed &= check(d, a, b, i, j)
    picture().save(options.output)
    print(f"\npicture {options.output}")
    return 0 if passed else 1


def picture() -> Figure:
    """Five rows of a tensor of seven, as a matrix: row 4 twice, and one that is not there."""
    gather = torch.tensor([4, 0, 4, -1, 6], dtype=torch.int32)
    a = operand(Mode(5, 7, 4, gather), Mode(4, 4, 1))
    b, d = (operand(Mode(m, m, n), Mode(n, n, 1)) for m, n in ((3, 4), (5, 3)))
    return draw(GemmView(a=a, b=b, d=d), row=2, title="A matrix of gathered rows, and the tensor")


def view_of(i: Index, j: Index) -> GemmView:
    """A (ROWS, K), B transposed (COLUMNS, K), and D, transposed if columns alone are scattered."""
    m, n, k = runtime(i.count(ROWS), "M"), static(j.count(COLUMNS), "N"), static(K, "K")
    rows, columns = runtime(ROWS, "rows"), static(COLUMNS, "columns")
    d_rows = m if i.scatter is None else rows
    d_columns = n if j.scatter is None else columns
    return GemmView(
        a=operand(Mode(m, rows, k, i.gather), Mode(k, k, 1)),
        b=operand(Mode(n, columns, 1, j.gather), Mode(k, k, columns)),
        d=operand(Mode(m, d_rows, d_columns, i.scatter), Mode(n, d_columns, 1, j.scatter)),
    )


def operand(*modes: Mode) -> ComposedLayout:
    """(row, column) of the product to memory; the mode with an index is the tensor's first."""
    in_memory = sorted(modes, key=lambda mode: mode.index is None)
    memory = Layout(tuple(m.stored for m in in_memory), tuple(m.stride for m in in_memory))
    lookup = Layout(
        tuple(mode.extent for mode in in_memory),
        tuple(
            E(at) if mode.index is None else CustomStride(IndexedGather(mode.index), E(at))
            for at, mode in enumerate(in_memory)
        ),
    )
    places = tuple(E(in_memory.index(mode)) for mode in modes)
    coordinates = Layout(tuple(mode.extent for mode in modes), places)
    if all(mode.index is None for mode in modes):
        return ComposedLayout(memory, 0, coordinates)
    return ComposedLayout(ComposedLayout(memory, 0, lookup), 0, coordinates)


def check(d: Tensor, a: Tensor, b: Tensor, i: Index, j: Index) -> bool:
    """Compare with float64; what is not written has to be as it was, NaN."""

    def all_or(index: Tensor | None, count: int) -> Tensor:
        return torch.arange(count) if index is None else index.cpu().long()

    a, b, found = a.double().cpu(), b.double().cpu(), d.double().cpu()
    rows, columns = all_or(i.gather, ROWS), all_or(j.gather, COLUMNS)
    product = (a[rows] * (rows >= 0)[:, None]) @ (b[:, columns] * (columns >= 0))
    to_rows, to_columns = all_or(i.scatter, len(rows)), all_or(j.scatter, len(columns))
    expected = torch.full_like(found, torch.nan)
    kept_rows, kept_columns = to_rows >= 0, to_columns >= 0
    places = to_rows[kept_rows][:, None], to_columns[kept_columns]
    expected[places] = product[kept_rows][:, kept_columns]
    written = ~expected.isnan()
    error = float((found - expected)[written].norm() / expected[written].norm())
    passed = error <= BOUND[d.device.type] and torch.equal(~found.isnan(), written)
    verdict = "ok" if passed else "FAILED"
    print(f"{int(written.sum())} numbers written, error {error:.1e} of float64's result, {verdict}")
    return passed


if __name__ == "__main__":
    raise SystemExit(main())
