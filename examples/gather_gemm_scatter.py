"""A matrix product of gathered rows, scattered to rows: CUTLASS's example 52 as a GEMM view.

    python examples/gather_gemm_scatter.py [--device cuda]

    D[scatter[i], :] = A[gather[i], :] @ B

An index buffer is one more map between the rows of the product and memory. Nothing is copied to be
multiplied, and nothing after. The same map on n gathers columns of B and scatters columns of D.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

import layoutconv as lc
from layoutconv import ComposedLayout, CustomStride, E, GemmView, IndexedGather, Layout
from layoutconv.operands import row_major, runtime, static

ROWS, M, N, K = 300, 200, 64, 96  # rows of A and D in memory; the size of the product
COLUMNS = 160  # columns of B and D in memory, where they are gathered
BOUND = {"cpu": 1e-6, "cuda": 1e-3}  # on relative errors; a GPU multiplies fp32 as tf32


def main(arguments: Sequence[str] | None = None) -> int:
    """Multiply through indices on rows, then on columns too; 1 if a result is wrong, else 0."""
    parser = argparse.ArgumentParser(description="Gather, GEMM and scatter, from layouts.")
    parser.add_argument("--device", choices=BOUND, default="cpu")
    device = parser.parse_args(arguments).device
    generator = torch.Generator().manual_seed(0)

    def random(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator).to(device)

    def some(count: int, of: int) -> Tensor:
        return torch.randperm(of, generator=generator)[:count].int().to(device)

    a, b = random(ROWS, K), random(K, N)
    gather, scatter = some(M, ROWS), some(M, ROWS)
    view = rows_view(gather, scatter)
    print(f"Rows gathered and scattered, {M} of {ROWS}:\n{view.describe()}")
    out = torch.full((ROWS, N), torch.nan, device=device)
    lc.execute(view, a, b, out)
    expected = torch.full_like(out, torch.nan, dtype=torch.float64)
    expected[scatter.long()] = a.double()[gather.long()] @ b.double()
    passed = compare("rows", out, expected)

    # A row that is named twice is read twice; -1 is a row of zeros, and is not written.
    gather[1], gather[2], scatter[3] = gather[0], -1, -1
    out = torch.full((ROWS, N), torch.nan, device=device)
    lc.execute(view, a, b, out)
    expected = torch.full_like(out, torch.nan, dtype=torch.float64)
    product = a.double()[gather.clamp_min(0).long()] @ b.double() * (gather >= 0)[:, None]
    kept = scatter >= 0
    expected[scatter[kept].long()] = product[kept]
    passed &= compare("rows, one twice and one absent", out, expected)

    wide = random(K, COLUMNS)
    columns, places = some(N, COLUMNS), some(N, COLUMNS)
    both = columns_view(gather, scatter, columns, places)
    print(f"\nColumns of B and of D too, {N} of {COLUMNS}:\nB: {both.b}\nD: {both.d}")
    out = torch.full((ROWS, COLUMNS), torch.nan, device=device)
    try:
        lc.execute(both, a, wide, out)
    except ValueError as error:  # the kernels take an index for A and one for the rows of D
        print(f"the executor on {device} says: {error}")
    else:
        product = a.double()[gather.clamp_min(0).long()] @ wide.double()[:, columns.long()]
        product *= (gather >= 0)[:, None]
        expected = torch.full_like(out, torch.nan, dtype=torch.float64)
        expected[scatter[kept].long()[:, None], places.long()] = product[kept]
        passed &= compare("rows and columns", out, expected)
    return 0 if passed else 1


def rows_view(gather: Tensor, scatter: Tensor) -> GemmView:
    """Row i of the product is of row ``gather[i]`` of A, and goes to row ``scatter[i]`` of D."""
    m, n, k = runtime(M, "M"), static(N, "N"), static(K, "K")
    rows = runtime(ROWS, "rows")
    return GemmView(
        a=ComposedLayout(through((rows, k), (m, k), {0: gather}), 0, Layout((m, k), (E(0), E(1)))),
        b=ComposedLayout(row_major((k, n)), 0, Layout((n, k), (E(1), E(0)))),
        d=ComposedLayout(through((rows, n), (m, n), {0: scatter}), 0, Layout((m, n), (E(0), E(1)))),
    )


def columns_view(gather: Tensor, scatter: Tensor, columns: Tensor, places: Tensor) -> GemmView:
    """Column j of the product is column ``columns[j]`` of B, and goes to ``places[j]`` of D."""
    m, n, k = runtime(M, "M"), static(N, "N"), static(K, "K")
    rows, stored = runtime(ROWS, "rows"), static(COLUMNS, "columns")
    d = through((rows, stored), (m, n), {0: scatter, 1: places})
    return GemmView(
        a=rows_view(gather, scatter).a,
        b=ComposedLayout(
            through((k, stored), (k, n), {1: columns}), 0, Layout((n, k), (E(1), E(0)))
        ),
        d=ComposedLayout(d, 0, Layout((m, n), (E(0), E(1)))),
    )


def through(
    stored: tuple[Any, Any], positions: tuple[Any, Any], index: dict[int, Tensor]
) -> ComposedLayout:
    """Positions of a matrix to a contiguous one, some modes of them through an index buffer."""
    gather = [CustomStride(IndexedGather(index[i]), E(i)) if i in index else E(i) for i in (0, 1)]
    return ComposedLayout(row_major(stored), 0, Layout(positions, tuple(gather)))


def compare(name: str, d: Tensor, expected: Tensor) -> bool:
    """Print how far a result is from float64's; what is not written has to be as it was, NaN."""
    written = ~expected.isnan()
    difference = (d.double() - expected)[written]
    error = float(difference.norm() / expected[written].norm())
    passed = error <= BOUND[d.device.type] and torch.equal(~d.isnan(), written)
    count = int(written.sum())
    verdict = "ok" if passed else "FAILED"
    print(f"{name}: {count} numbers written, error {error:.1e} of float64's result, {verdict}")
    return passed


if __name__ == "__main__":
    raise SystemExit(main())
