"""Small problems that between them run every kind of kernel: for compute-sanitizer.

It makes kernels ten to a hundred times slower, which the suite is too long for::

    compute-sanitizer --tool memcheck python -m tests.gpu.covering

Of the template, each kind of tile runs once: how warps are specialised, who loads, which tiles a
CTA computes, halo reuse, clusters, a resident B, narrow tiles, several groups, slices of sums, what
is kept of index buffers. The rest are calls of public functions. Results are compared elsewhere;
here they are finite. ``run`` takes parts by name, all by default.
"""

from __future__ import annotations

import sys
from collections.abc import Hashable, Iterator
from typing import Any

import torch

import layoutconv as lc
from layoutconv.conv import ConvProblem, dgrad_views, fprop_view, wgrad_view
from layoutconv.gpu.folding_choice import arranged_fprop, arranged_wgrad
from layoutconv.gpu.phase_choice import arranged_dgrad
from layoutconv.gpu.plan import Plan
from layoutconv.gpu.select import choose_kernel
from layoutconv.planning.cost_model import ranked
from layoutconv.planning.kernel_spec import KernelSpec
from layoutconv.planning.machine import Machine
from layoutconv.planning.view_rules import UnsupportedViewError
from layoutconv.sparse import kernel_map_view
from layoutconv.tensors.expected_tensors import expected
from layoutconv.view.gemm_view import GemmView

HALF, SINGLE = torch.float16, torch.float32
PROBLEMS = {
    "plain": ConvProblem((2, 20, 22, 64), (128, 3, 3), padding=1),
    "one tap": ConvProblem((2, 16, 20, 64), (64, 1, 1)),
    "strided": ConvProblem((2, 17, 18, 64), (32, 3, 3), 2, 1),
    "deep": ConvProblem((1, 5, 6, 256), (64, 3, 3), padding=1),
    "head": ConvProblem((2, 20, 24, 64), (3, 3, 3), padding=1),
    "odd": ConvProblem((1, 13, 11, 20), (24, 3, 3), padding=1),
    "groups of 4": ConvProblem((2, 17, 18, 32), (32, 3, 3), padding=1, groups=8),
    "groups of 24": ConvProblem((2, 9, 10, 48), (48, 3, 3), padding=1, groups=2),
}
POINTWISE = {
    "matrix": ConvProblem((2, 16, 20, 64), (64, 1, 1)),
    "rest of a matrix": ConvProblem((2, 9, 11, 48), (40, 1, 1)),
}
MAPS = {"half lines": (32, 40), "quarter lines": (48, 160), "odd channels": (20, 24)}
DTYPES = (HALF, SINGLE, torch.float64, torch.int8, torch.float8_e4m3fn)


def views() -> Iterator[tuple[str, GemmView, torch.dtype, torch.dtype]]:
    """Yield views by name, dtypes of data and of results."""
    for name, problem in PROBLEMS.items():
        passes = fprop_view(problem), dgrad_views(problem)[-1], wgrad_view(problem)
        for kind, view in zip(("fprop", "dgrad", "wgrad"), passes, strict=True):
            for dtype in DTYPES if name == "plain" else (HALF, SINGLE):
                if dtype.itemsize > 1 or kind == "fprop":
                    out = {torch.int8: torch.int32, torch.float8_e4m3fn: HALF}.get(dtype, dtype)
                    yield f"{name}, {kind}", view, dtype, SINGLE if kind == "wgrad" else out
    for name, problem in POINTWISE.items():
        passes = arranged_fprop(problem), arranged_dgrad(problem)[0], arranged_wgrad(problem)
        for kind, view in zip(("fprop", "dgrad", "wgrad"), passes, strict=True):
            for dtype in (HALF, SINGLE) if kind == "fprop" else (HALF,):  # of tf32, TMA brings A
                yield f"{name}, {kind} of pixels", view, dtype, SINGLE if kind == "wgrad" else dtype
    for name, (channels, columns) in MAPS.items():
        view = map_view(700, channels, columns)
        for dtype in (HALF, SINGLE):
            for out in dict.fromkeys((dtype, SINGLE)):
                yield f"{name} of a map, fprop", view, dtype, out


def map_view(rows: int, channels: int, columns: int) -> GemmView:
    """A kernel map of 27 taps, most of which rows lack, that stores rows in another order."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    index = torch.randint(-3 * rows, rows, (27, rows), dtype=torch.int32, device=device).clamp(-1)
    order = torch.randperm(rows, device=device).int()
    return kernel_map_view(
        index.T, channels, columns, kernel_size=(3, 3, 3), in_rows=rows, scatter_index=order
    )


def kind_of(tile: Any, splits: int) -> tuple[Hashable, ...]:
    """Return what another kernel is written for."""
    return (
        type(tile).__name__, tile.schedule, tile.load, tile.scheduler, tile.halo_taps > 1,
        tile.cluster_k > 1, tile.b_resident > 0, tile.n <= 16, tile.stages == 1, splits > 1,
        tile.mma_threads // 128, tile.n & (tile.n - 1) > 0,
    )  # fmt: skip


def kind_of_matrix(tile: Any) -> tuple[Hashable, ...]:
    """Return the same of how the rows of a matrix are loaded."""
    return "matrix", tile.warp_specialized and (tile.scheduler, tile.b_resident > 0)


def kind_of_map(spec: KernelSpec) -> tuple[Hashable, ...]:
    """Return the same of what a kernel does with an index buffer."""
    return spec.skip, spec.kept > 0, spec.kept > 0 and spec.bytes_past_stages > 0


Chosen = tuple[str, GemmView, torch.dtype, torch.dtype, Any, int]


def choices(device: int | Machine) -> Iterator[Chosen]:
    """Yield each kind of tile once for a size of data and a pass, with a view that it runs."""
    seen = set()
    for name, view, dtype, out in views():
        if out is SINGLE and dtype is torch.float64:
            out = dtype
        found = choose_kernel(view, dtype, device, out, measures=False)
        for tile, splits in ranked(found.problem, found.machine):
            kind = kind_of_matrix(tile) if "of pixels" in name else kind_of(tile, splits)
            key: tuple[Hashable, ...] = dtype, name.rpartition(", ")[2], kind
            if key in seen and not found.problem.gathered:
                continue
            try:
                chosen = choose_kernel(view, dtype, found.machine, out, tile=tile, splits=splits)
            except UnsupportedViewError:
                continue
            if found.problem.gathered:
                key = *key, kind_of_map(chosen.spec)
            if key not in seen:
                seen.add(key)
                yield name, view, dtype, out, tile, splits


def tiles() -> None:
    device = torch.cuda.current_device()
    for name, view, dtype, out_dtype, tile, splits in choices(device):
        print(f"{name}, {str(dtype)[6:]}: {tile}, {splits} slices", flush=True)
        want = expected(view)
        a, b = (torch.randint(-2, 3, x.shape, device="cuda").to(dtype) for x in (want.a, want.b))
        out = torch.zeros(tuple(want.d.shape), dtype=out_dtype, device="cuda")
        Plan(view, dtype, device, out_dtype, tile=tile, splits=splits)(a, b, out)
        assert out.float().isfinite().all()


def step(result: Any, *leaves: torch.Tensor) -> None:
    """Go back through a result, all of which is finite."""
    found = torch.autograd.grad(result.float().square().mean(), leaves) if leaves else ()
    assert all(t.float().isfinite().all() for t in (result.detach(), *found))


def drawn(*shape: int, dtype: torch.dtype = HALF) -> torch.Tensor:
    return (torch.randn(shape, device="cuda") / 4).to(dtype).requires_grad_()


def dense() -> None:
    """Depthwise, packed, transposed, and what follows the sums."""
    for dtype in (HALF, SINGLE):
        for C, taps, stride in ((36, 3, 1), (64, 7, 1), (16, 5, 2)):
            x, w = drawn(2, C, 19, 21, dtype=dtype), drawn(C, 1, taps, taps, dtype=dtype)
            step(lc.conv2d(x, w, None, stride, taps // 2, groups=C), x, w)
        x, w = drawn(2, 16, 200, dtype=dtype), drawn(16, 1, 31, dtype=dtype)
        step(lc.conv1d(x, w, None, 1, 15, groups=16), x, w)
        x, w = drawn(2, 3, 40, 40, dtype=dtype), drawn(32, 3, 7, 7, dtype=dtype)
        step(lc.conv2d(x, w, None, 2, 3), x, w)
        x, w = drawn(2, 64, 9, 9, dtype=dtype), drawn(64, 32, 4, 4, dtype=dtype)
        bias = drawn(32, dtype=dtype)
        step(lc.conv_transpose2d(x, w, bias, 2, 1, activation="relu"), x, w, bias)
        x, w = drawn(2, 32, 14, 14, dtype=dtype), drawn(40, 32, 3, 3, dtype=dtype)
        step(lc.conv2d(x, w, drawn(40, dtype=dtype), 1, 1, activation="silu"), x, w)
    columns = lc.ReductionView(lc.Layout((70, 300), (1, 70)), lc.Layout(70))
    step(lc.reduce(columns, torch.randn(300, 70, device="cuda"), "sum"))


def sparse() -> None:
    """Maps in 1-D to 4-D, layers of all kinds, pools, voxels and back."""
    for rank in (1, 2, 3, 4):
        extents = (40, 12, 9, 7)[:rank]
        grid = torch.rand(2, *extents, device="cuda") < 0.4
        cells = grid.nonzero().int()
        for dtype in (HALF, SINGLE):
            x = lc.SparseTensor(drawn(len(cells), 16, dtype=dtype), cells, extents, 2)
            taps = (3,) * rank
            own, down, up = (drawn(32, *t, 16, dtype=dtype) for t in (taps, taps, taps))
            y = lc.subm_conv(x, own)
            wide = lc.sparse_conv_transpose(x, up, stride=2)
            for found, weight in ((y, own), (wide, up)):
                step(found.features, x.features, weight)
            back = drawn(16, *taps, 32, dtype=dtype)
            again = lc.sparse_inverse_conv(lc.sparse_conv(x, down, stride=2, padding=1), back)
            step(again.features, x.features, down, back)
            apart = drawn(16, *taps, 1, dtype=dtype)
            step(lc.subm_conv(x, apart, groups=16).features, x.features, apart)
            for mode in ("max", "mean"):
                pooled = lc.nn.sparse_global_pool(x, mode)
                step(pooled, x.features)
    points = torch.rand(2000, 5, device="cuda")
    voxels = lc.voxelize(points, 0.1)
    assert lc.devoxelize(voxels).isfinite().all()


PARTS = {"tiles": tiles, "dense": dense, "sparse": sparse}


def run(*names: str) -> None:
    torch.manual_seed(0)
    for name in names or PARTS:
        PARTS[name]()
        torch.cuda.synchronize()
        print(f"{name}: done", flush=True)


if __name__ == "__main__":
    run(*sys.argv[1:])
