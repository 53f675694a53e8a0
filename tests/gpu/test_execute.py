"""``execute`` on a GPU: the laws of the views, kernels chosen as for a user, outputs poisoned."""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

from layoutconv import Layout, execute
from layoutconv.conv import ConvProblem, fprop_view, gather_fprop_view
from layoutconv.errors import ArgumentError, ArgumentTypeError
from layoutconv.gpu.plan import Plan
from layoutconv.planning.tile import TileConfig
from layoutconv.reference import Reference
from layoutconv.sparse import kernel_map_view
from layoutconv.view.gemm_view import GemmView, stages

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")

DTYPES = [torch.float16, torch.bfloat16, torch.float32]
each_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=lambda d: str(d).removeprefix("torch."))
few = settings(max_examples=30, deadline=None, suppress_health_check=list(HealthCheck))


def shape(layout: Any) -> tuple[int, ...]:
    """The shape of the tensor that an operand expects."""
    return tuple(map(int, stages(layout)[-1].layout.shape))


def operands(view: GemmView, dtype: torch.dtype, seed: int = 0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator("cuda").manual_seed(seed)

    def make(layout: Any) -> Tensor:
        return torch.randn(shape(layout), generator=generator, device="cuda").to(dtype)

    return make(view.a), make(view.b)


def to(index: Tensor | None, device: str) -> Tensor | None:
    return None if index is None else index.to(device)


def reference(view: GemmView, a: Tensor, b: Tensor) -> Reference:
    """The CPU executor in float64, which has tests of its own; NaN where nothing is written.

    ``view`` has its index buffers on the CPU.
    """
    a, b = a.cpu().double(), b.cpu().double()
    poison = torch.full(shape(view.d), torch.nan, dtype=torch.float64)
    value = execute(view, a, b, poison.clone())
    return Reference(value, execute(view, a.abs(), b.abs(), poison.clone()), length=view.k)


def check(got: Tensor, want: Reference) -> None:
    """Every element within its rounding error; what is not to be written is NaN still."""
    error = (got.cpu().double() - want.value).abs()
    assert torch.equal(got.cpu().isnan(), want.value.isnan())
    excess = (error - want.bound(got.dtype, tensor_cores=True)).nan_to_num(-1.0)
    assert excess.numel() == 0 or excess.max() <= 0


def check_view(on_cpu: GemmView, view: GemmView, dtype: torch.dtype, seed: int = 0) -> None:
    a, b = operands(view, dtype, seed)
    out = torch.full(shape(view.d), torch.nan, dtype=dtype, device="cuda")
    assert execute(view, a, b, out) is out
    check(out, reference(on_cpu, a, b))


def check_dense(problem: ConvProblem, dtype: torch.dtype, seed: int = 0) -> None:
    view = fprop_view(problem)
    check_view(view, view, dtype, seed)


def check_grid(
    problem: ConvProblem, gather: Any, scatter: Any, dtype: torch.dtype, **rows: int
) -> None:
    cpu, gpu = (
        gather_fprop_view(problem, to(gather, device), to(scatter, device), **rows)
        for device in ("cpu", "cuda")
    )
    check_view(cpu, gpu, dtype)


# -- random problems ------------------------------------------------------------------------------


class Static(NamedTuple):
    """The parameters a kernel is compiled for; all else varies without compiling again."""

    dtype: torch.dtype
    C: int
    K: int
    taps: tuple[int, ...]
    stride: tuple[int, ...]
    dilation: tuple[int, ...]
    indices: str  # of a grid


STATIC = [
    Static(torch.float16, 64, 128, (3, 3, 3), (1, 1, 1), (1, 1, 1), "gather scatter"),
    Static(torch.float32, 24, 40, (3, 2), (2, 1), (1, 3), "gather scatter"),
    Static(torch.bfloat16, 8, 8, (5,), (3,), (2,), "gather"),
    Static(torch.bfloat16, 16, 24, (5, 5, 5), (1, 1, 1), (1, 1, 1), "scatter"),
]


@st.composite
def problems(draw: st.DrawFn, static: Static) -> ConvProblem:
    rank = len(static.taps)

    def each(low: int, high: int) -> list[int]:
        return draw(st.lists(st.integers(low, high), min_size=rank, max_size=rank))

    near = draw(st.sampled_from([0, 1, 4]))
    far, extents = each(0, 4), each(1, {1: 2000, 2: 50, 3: 9}[rank])
    spans = [d * (t - 1) + 1 for d, t in zip(static.dilation, static.taps, strict=True)]
    fit = [max(e, s - near - f) for e, s, f in zip(extents, spans, far, strict=True)]
    activation = (draw(st.integers(0, 5)), *fit, static.C)
    padding = [(near, f) for f in far]
    return ConvProblem(
        activation, (static.K, *static.taps), static.stride, padding, static.dilation
    )


@few
@given(data=st.data(), static=st.sampled_from(STATIC), seed=st.integers(0, 99))
def test_dense(data: st.DataObject, static: Static, seed: int) -> None:
    check_dense(data.draw(problems(static)), static.dtype, seed)


def rows(count: int, entries: int, absent: float, seed: int) -> Tensor:
    """Distinct rows in random order, a part of them absent."""
    generator = torch.Generator().manual_seed(seed)
    index = torch.randperm(count, generator=generator)[:entries].int()
    return index.masked_fill(torch.rand(entries, generator=generator) < absent, -1)


@few
@given(
    data=st.data(),
    static=st.sampled_from(STATIC),
    absent=st.sampled_from([0.0, 0.3, 1.0]),
    extra=st.integers(0, 9),
    seed=st.integers(0, 99),
)
def test_grid(data: st.DataObject, static: Static, absent: float, extra: int, seed: int) -> None:
    problem = data.draw(problems(static))
    cells, outputs = (
        torch.Size(extents[:-1]).numel() for extents in (problem.activation, problem.output)
    )
    gather = scatter = None
    counts = {}
    if "gather" in static.indices:
        gather, counts["in_rows"] = rows(cells + extra, cells, absent, seed), cells + extra
    if "scatter" in static.indices:
        scatter = rows(outputs + extra, outputs, absent, seed + 1)
        counts["out_rows"] = outputs + extra
    check_grid(problem, gather, scatter, static.dtype, **counts)


MAPS = [
    (torch.float16, 64, 128, (3, 3, 3), "tap-major"),
    (torch.float32, 24, 40, (3, 2), "row-major"),
    (torch.bfloat16, 16, 8, (5, 4, 4), "tap-major"),
    (torch.bfloat16, 40, 24, (2,), "row-major"),
]


@few
@given(
    m=st.integers(0, 3000),
    in_rows=st.integers(1, 3000),
    static=st.sampled_from(MAPS),
    absent=st.sampled_from([0.0, 0.7, 1.0]),
    seed=st.integers(0, 99),
)
def test_kernel_map(m: int, in_rows: int, static: Any, absent: float, seed: int) -> None:
    dtype, C, K, sizes, order = static
    generator = torch.Generator().manual_seed(seed)
    taps = torch.Size(sizes).numel()
    entries = torch.randint(0, in_rows, (m, taps), generator=generator, dtype=torch.int32)
    entries.masked_fill_(torch.rand(m, taps, generator=generator) < absent, -1)
    here, there = entries, entries.cuda()
    if order == "tap-major":
        here, there = (e.T.contiguous().T for e in (here, there))
    cpu, gpu = (kernel_map_view(e, C, K, kernel_size=sizes, in_rows=in_rows) for e in (here, there))
    check_view(cpu, gpu, dtype, seed)


# -- problems of their own ------------------------------------------------------------------------


def by_torch(a: Tensor, b: Tensor, padding: int, length: int) -> Reference:
    """A convolution of NDHWC in float64."""
    x, w = a.permute(0, 4, 1, 2, 3).double(), b.permute(0, 4, 1, 2, 3).double()
    value, magnitude = (
        torch.nn.functional.conv3d(f(x), f(w), padding=padding).permute(0, 2, 3, 4, 1).cpu()
        for f in (lambda t: t, torch.abs)
    )
    return Reference(value, magnitude, length=length)


@each_dtype
def test_a_problem_of_real_size(dtype: torch.dtype) -> None:
    problem = ConvProblem((4, 16, 32, 32, 64), (128, 3, 3, 3), padding=1)
    view = fprop_view(problem)
    a, b = operands(view, dtype)
    want = by_torch(a, b, 1, view.k)
    check(
        execute(view, a, b, torch.full(problem.output, torch.nan, dtype=dtype, device="cuda")), want
    )
    if torch.cuda.get_device_capability() in ((8, 0), (9, 0)):  # which have room for it
        out = torch.full(problem.output, torch.nan, dtype=dtype, device="cuda")
        tile = TileConfig(
            (256, 128, 128 // dtype.itemsize), (4, 2)
        )  # of 16 bits, its copies are spread
        Plan(view, dtype, 0, tile=tile)(a, b, out)
        check(out, want)


@each_dtype
def test_gathered_and_scattered_rows_of_real_size(dtype: torch.dtype) -> None:
    """In tf32 on a Hopper, three warpgroups multiply."""
    problem = ConvProblem((4319, 6, 4, 4, 64), (128, 3, 3, 3))
    cells, outputs = (torch.Size(s[:-1]).numel() for s in (problem.activation, problem.output))
    counts = {"in_rows": cells + 7, "out_rows": outputs + 9}
    gather = rows(counts["in_rows"], cells, 0.1, 0)
    scatter = rows(counts["out_rows"], outputs, 0.1, 1)
    view = gather_fprop_view(problem, gather.cuda(), scatter.cuda(), **counts)
    a, b = operands(view, dtype)
    out = torch.full(shape(view.d), torch.nan, dtype=dtype, device="cuda")
    execute(view, a, b, out)
    if dtype == torch.float32 and torch.cuda.get_device_capability() == (9, 0):
        assert Plan(view, dtype, 0).tile.warps[0] == 12
    there = (gather >= 0).cuda()[:, None]
    dense = by_torch((a[gather.cuda()] * there).view(problem.activation), b, 0, view.k)
    written = scatter >= 0
    check(
        out[scatter[written].cuda()],
        Reference(
            dense.value.reshape(outputs, -1)[written],
            dense.magnitude.reshape(outputs, -1)[written],
            dense.length,
        ),
    )
    left = torch.ones(len(out), dtype=torch.bool).index_fill(0, scatter[written].long(), False)
    assert out.cpu()[left].isnan().all()


def test_offsets_beyond_32_bits() -> None:
    free, _ = torch.cuda.mem_get_info()
    if free < 14 << 30:
        pytest.skip("needs 14 GB of device memory")
    # 2^28 rows and some of 8 channels: the last ones start beyond 2^31 elements, 2^32 bytes.
    count = 2**28 + 1000
    a = torch.zeros(count, 8, dtype=torch.float16, device="cuda")
    b = torch.randn(8, 3, 8, device="cuda").half()
    a[-2000:] = torch.randn(2000, 8, device="cuda").half()
    m = 1500
    entries = torch.randint(count - 2000, count, (m, 3), device="cuda", dtype=torch.int32)
    scatter = torch.arange(count - m, count, device="cuda", dtype=torch.int32)
    view = kernel_map_view(
        entries, 8, 8, kernel_size=(3,), in_rows=count, scatter_index=scatter, out_rows=count
    )
    out = torch.zeros(count, 8, dtype=torch.float16, device="cuda")
    execute(view, a, b, out)
    want = torch.einsum("mtc,ktc->mk", a[entries.long()].double(), b.double())
    torch.testing.assert_close(out[-m:].double(), want, atol=0.02, rtol=0.01)
    assert not out[:-m].any()


@each_dtype
def test_nan_and_infinity_reach_the_outputs_that_read_them_and_no_other(dtype: torch.dtype) -> None:
    view = fprop_view(ConvProblem((1, 300, 16), (24, 3), padding=1))
    a, b = operands(view, dtype)
    clean = execute(view, a, b)
    words = a.view({2: torch.int16, 4: torch.int32}[a.itemsize])
    words[0, 50, 3] = -1  # NaN, all ones
    words[0, 60, 4] = {
        torch.float16: 0x7C01, torch.bfloat16: 0x7F81, torch.float32: 0x7F800001
    }[dtype]  # fmt: skip
    a[0, 70, 5], a[0, 80, 6] = torch.inf, -torch.inf
    out = execute(view, a, b)
    touched = torch.zeros(300, dtype=torch.bool, device="cuda")
    for at in (50, 60, 70, 80):
        touched[at - 1 : at + 2] = True
        kind = out[0, at - 1 : at + 2].isnan() if at < 70 else out[0, at - 1 : at + 2].isinf()
        assert kind.all()
    assert torch.equal(out[0, ~touched], clean[0, ~touched])


def test_fp32_is_rounded_to_the_nearest_tf32() -> None:
    view = fprop_view(ConvProblem((1, 64, 8), (8, 1)))
    a = torch.full((1, 64, 8), 1 + 2**-11 + 2**-13, device="cuda")
    out = execute(view, a, torch.eye(8, device="cuda").view(8, 1, 8))
    assert (out == 1 + 2**-10).all()
    out = execute(view, torch.ones_like(a), torch.eye(8, device="cuda").view(8, 1, 8) * a[0, 0, 0])
    assert (out == 1 + 2**-10).all()


def test_results_are_the_same_bits_every_time() -> None:
    view = fprop_view(ConvProblem((2, 30, 30, 64), (128, 3, 3), padding=1))
    a, b = operands(view, torch.bfloat16)
    first = execute(view, a, b)
    assert all(torch.equal(first, execute(view, a, b)) for _ in range(20))


@pytest.mark.parametrize("N", [0, 1])
def test_an_empty_problem(N: int) -> None:
    problem = ConvProblem((0, 5, 5, 16), (8, 3, 3), padding=1)
    a = torch.empty(0, 5, 5, 16, device="cuda", dtype=torch.float16)
    b = torch.randn(8, 3, 3, 16, device="cuda").half()
    assert execute(fprop_view(problem), a, b).shape == (0, 5, 5, 8)
    # Rows that there are none of, read by rows of a kernel map: zeros.
    entries = torch.full((9 * N, 9), -1, dtype=torch.int32, device="cuda")
    view = kernel_map_view(entries, 16, 8, kernel_size=(3, 3), in_rows=0)
    out = torch.full((9 * N, 8), torch.nan, dtype=torch.float16, device="cuda")
    execute(view, a.view(0, 16), b, out)
    assert torch.equal(out, torch.zeros_like(out))


# -- indices --------------------------------------------------------------------------------------


WILD = [-1, -2, -(2**31), 2**31 - 1, 2**30, -(2**30), 10, 11]


@each_dtype
def test_rows_that_do_not_exist_are_not_touched(dtype: torch.dtype) -> None:
    wild = torch.tensor(WILD, dtype=torch.int32).repeat(200)
    gather = wild.clone()
    gather[::3] = torch.arange(len(gather[::3]), dtype=torch.int32) % 12
    scatter = wild.clone()
    scatter[4:14] = torch.randperm(10).int()
    problem = ConvProblem((2, 800, 16), (24, 3), padding=1)
    view = gather_fprop_view(problem, gather.cuda(), scatter.cuda(), in_rows=10, out_rows=10)
    a, b = operands(view, dtype)
    padded = torch.full((12, 24), torch.nan, dtype=dtype, device="cuda")
    out = execute(view, a, b, padded[1:11])
    torch.cuda.synchronize()
    assert padded[0].isnan().all()
    assert padded[11].isnan().all()

    def tame(index: Tensor) -> Tensor:
        return index.where((index >= 0) & (index < 10), -1)

    tamed = gather_fprop_view(problem, tame(gather), tame(scatter), in_rows=10, out_rows=10)
    check(out, reference(tamed, a, b))


def test_the_checked_mode_names_the_index() -> None:
    problem = ConvProblem((1, 6, 16), (8, 3), padding=1)
    good = torch.arange(6, dtype=torch.int32, device="cuda")
    expected = r"`view\.a`: expected entries in \[-1, 6\), got "
    for bad in (-2, 6):
        index = good.clone()
        index[3] = bad
        view = gather_fprop_view(problem, index, good)
        a, b = operands(view, torch.float16)
        with pytest.raises(ArgumentError, match=f"{expected}{bad}"):
            execute(view, a, b, check=True)
        execute(view, a, b)  # unchecked, it reads as zero
    index = good.clone()
    index[3] = 2
    view = gather_fprop_view(problem, index, index)
    with pytest.raises(ArgumentError, match=r"`view\.d`: expected distinct rows.* row 2 in 2"):
        execute(view, a, b, check=True)
    assert execute(gather_fprop_view(problem, index), a, b, check=True).isfinite().all()
    torch.cuda.synchronize()


# -- arguments ------------------------------------------------------------------------------------

VIEW = fprop_view(ConvProblem((1, 6, 16), (8, 3), padding=1))


def test_memory_that_is_not_aligned() -> None:
    a, b = operands(VIEW, torch.float16)
    out = torch.empty(1, 6, 8, dtype=torch.float16, device="cuda")
    want = execute(VIEW, a, b)
    for shifted in range(3):
        moved = [a, b, out]
        memory = torch.empty(moved[shifted].numel() + 1, dtype=torch.float16, device="cuda")
        moved[shifted] = memory[1:].view(moved[shifted].shape).copy_(moved[shifted])
        torch.testing.assert_close(execute(VIEW, *moved), want, rtol=2e-3, atol=2e-3)


def test_channels_that_vectors_do_not_divide() -> None:
    for C, K, dtype in ((12, 16, torch.float16), (16, 13, torch.float16), (7, 8, torch.float32)):
        view = fprop_view(ConvProblem((1, 6, C), (K, 3)))
        check_view(view, view, dtype)


def test_dtypes_and_devices() -> None:
    a, b = operands(VIEW, torch.float16)
    with pytest.raises(ArgumentTypeError, match="float16, bfloat16, float32, float64, int8"):
        execute(VIEW, a.long(), b.long())
    with pytest.raises(ArgumentTypeError, match=r"`b`: expected torch\.float16, the dtype of `a`"):
        execute(VIEW, a, b.bfloat16())
    with pytest.raises(ArgumentError, match="`b`: expected device cuda:0, that of `a`, got cpu"):
        execute(VIEW, a, b.cpu())
    with pytest.raises(ArgumentError, match="`out`: expected device cuda:0"):
        execute(VIEW, a, b, torch.empty(1, 6, 8, dtype=torch.float16))
    index = torch.arange(6, dtype=torch.int32)
    view = gather_fprop_view(ConvProblem((1, 6, 16), (8, 3), padding=1), index)
    with pytest.raises(ArgumentError, match=r"`view\.a`: expected an index on cuda:0.* got cpu"):
        execute(view, a.view(6, 16), b)
    with pytest.raises(ArgumentError, match="`a`: expected shape"):
        execute(VIEW, a[:, :5], b)
    with pytest.raises(ArgumentError, match="`a`: expected strides"):
        execute(VIEW, a.transpose(1, 2).contiguous().transpose(1, 2), b)


@each_dtype
@pytest.mark.parametrize("stride", [(256, 1), (1, 192)], ids=["B by rows", "B by columns"])
def test_a_plain_product_of_matrices(dtype: torch.dtype, stride: tuple[int, int]) -> None:
    """Three layouts as anybody writes them, without maps to coordinates."""
    b = Layout((192, 256), stride)
    view = GemmView(Layout((300, 256), (256, 1)), b, Layout((300, 192), (192, 1)))
    x, w = operands(view, dtype)
    w = w.as_strided((192, 256), stride)
    out = torch.full((300, 192), torch.nan, dtype=dtype, device="cuda")
    check(execute(view, x, w, out), reference(view, x, w))
