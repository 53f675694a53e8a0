"""The template on small problems: compile a kernel, launch it by its own host code, run it.

The simulator in ``tools/ptx_sim`` stands in for the GPU. Data are small integers, so that every
product and every sum is exact in every dtype and in any order: what a kernel writes must equal a
reference in float64 that is computed from the definition of a view alone, ``gemm_view.locate``.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from math import prod
from typing import Any

import torch
from torch import Tensor

from layoutconv.kernels.compile.build import build
from layoutconv.kernels.compile.cubin import CubinKernel, read_cubin
from layoutconv.kernels.compile.store import as_argument
from layoutconv.planning.channel_padding import has_padded_channels
from layoutconv.planning.kernel_key import index_buffer, runtime_integers, signature
from layoutconv.planning.kernel_spec import KernelSpec, kept_entries, run_of, vectors_of
from layoutconv.planning.tile import REGISTERS, TileConfig
from layoutconv.planning.view_rules import check_view
from layoutconv.tensors.epilogue_in_torch import convert
from layoutconv.view.epilogue import Activation, Bias, Epilogue, Residual
from layoutconv.view.gemm_view import GemmView, OperandLayout, locate, stages
from tools.ptx_sim import DeviceTensor, HostLaunch, Memory, Stats, launch_of, run
from tools.ptx_sim.ptx import Kernel

from .simulated import to_simulate


@dataclass(frozen=True)
class Kind:
    """A type that kernels multiply: its name there, dtypes of data and results, a machine."""

    name: str
    dtype: torch.dtype
    out: torch.dtype
    arch: str = "sm_80"

    def __str__(self) -> str:
        return self.name


KINDS = [
    Kind("float16", torch.float16, torch.float16),
    Kind("bfloat16", torch.bfloat16, torch.float32),
    Kind("tfloat32", torch.float32, torch.float32),
    Kind("float32", torch.float32, torch.float32),
    Kind("float64", torch.float64, torch.float64),
    Kind("int8", torch.int8, torch.int32),
    Kind("float8_e4m3fn", torch.float8_e4m3fn, torch.float16, "sm_89"),
    Kind("float8_e5m2", torch.float8_e5m2, torch.float32, "sm_89"),
]
# Of a dtype of data: the kernel's name for it.
NAMES = {torch.float16: "float16", torch.bfloat16: "bfloat16", torch.float32: "tfloat32"}
DTYPES = list(NAMES)


@dataclass(frozen=True)
class Compiled:
    """A kernel as host code, PTX and machine code."""

    spec: KernelSpec
    function: Any
    ptx: str
    cubin: bytes
    program: Kernel


def spec_of(
    view: GemmView,
    dtype: torch.dtype,
    tile: TileConfig,
    arch: str = "sm_80",
    out: Any = None,
    **rest: Any,
) -> KernelSpec:
    """The spec for data of ``dtype``, and results of the same or ``out``; ``rest`` are its fields.

    ``aligned``, bytes that the three tensors start at multiples of, may be among them.
    """
    kind = rest.pop("kind", NAMES.get(dtype, dtype_name(dtype)))
    aligned = rest.pop("aligned", (16, 16, 16))
    vectors, along = vectors_of(view, kind, dtype_name(out or dtype), aligned)
    if not view.k:  # sums of nothing, as an executor does it
        vectors, along = (1, 1, vectors[2]), (1, 1)
    spec = KernelSpec(kind, dtype_name(out or dtype), tile, arch, vectors, along, **rest)
    return replace(spec, kept=kept_entries(view, spec), run=run_of(view, spec, aligned[2]))


def compile_view(view: GemmView, *of: Any, **rest: Any) -> Compiled:
    """Compile the kernel of a view and of ``spec_of(view, *of, **rest)``."""
    spec = spec_of(view, *of, **rest)
    if not has_padded_channels(view):
        check_view(view, spec.along)
    return compile_spec(view, spec)


def compile_spec(view: GemmView, spec: KernelSpec) -> Compiled:
    """Compile the kernel of a view and of a spec that is at hand."""
    function, program = to_simulate(build, view, spec)
    return Compiled(spec, function, function.__ptx__, function.__cubin__, program)


def unspilled(compiled: Compiled, ctas: int = 1) -> CubinKernel:
    """The machine code of a kernel: no register is spilled, and an SM has room for ``ctas``."""
    (kernel,) = read_cubin(compiled.cubin).values()
    assert (kernel.stack, kernel.opcodes["LDL"], kernel.opcodes["STL"]) == (0, 0, 0)
    assert ctas * compiled.spec.tile.threads * -(-kernel.registers // 8) * 8 <= REGISTERS
    return kernel


_compiled: dict[Any, Compiled] = {}


def compiled_view(view: GemmView, *of: Any, **rest: Any) -> Compiled:
    """:func:`compile_view`, once per kernel."""
    spec = spec_of(view, *of, **rest)
    key = signature(view, spec.along, spec.epilogue), spec
    if key not in _compiled:
        _compiled[key] = compile_view(view, *of, **rest)
    return _compiled[key]


@contextmanager
def compiled_apart() -> Iterator[None]:
    """Keep what :func:`compiled_view` compiles in this context for nobody else: it is mutated."""
    before = dict(_compiled)
    _compiled.clear()
    try:
        yield
    finally:
        _compiled.clear()
        _compiled.update(before)


def dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def half_line(dtype: torch.dtype) -> int:
    """The shorter ``k`` of a tile: 64 bytes of elements."""
    return 64 // dtype.itemsize


# (m, n, half lines of k, warps_m, warps_n, stages), so that a small problem has many CTAs, and with
# many threads: what a thread copies is unrolled, and compiling is most of a test's time.
SMALL = [(64, 64, 1, 4, 2, 2), (32, 64, 1, 2, 2, 3), (32, 32, 2, 2, 2, 2), (64, 32, 1, 4, 2, 3)]


def tile_of(number: int, kind: Kind) -> TileConfig:
    """A small tile, by number, that runs every pass of a kind of data."""
    m, n, lines, warps_m, warps_n, stages = SMALL[number % len(SMALL)]
    return TileConfig((m, n, lines * half_line(kind.dtype)), (warps_m, warps_n), stages)


def storage(layout: OperandLayout) -> tuple[int, ...]:
    """The shape of the tensor that an operand expects, if that is contiguous; else of its memory.

    Memory is a vector, from the first element to the last.
    """
    memory = stages(layout)[-1].layout
    shape, stride = (tuple(map(int, t)) for t in (memory.shape, memory.stride))
    if 0 in shape or stride == tuple(prod(shape[i + 1 :]) for i in range(len(shape))):
        return shape
    return (1 + sum((s - 1) * d for s, d in zip(shape, stride, strict=True)),)


def integers(shape: tuple[int, ...], dtype: torch.dtype, seed: int) -> Tensor:
    """Random integers from -4 to 4 but 0: a product that is missing, or one too many, shows."""
    generator = torch.Generator().manual_seed(seed)
    sign = 2 * torch.randint(0, 2, shape, generator=generator) - 1
    return (torch.randint(1, 5, shape, generator=generator) * sign).to(dtype)


@dataclass
class Case:
    """A view with tensors for it; the output is poisoned with NaN, or the greatest integer."""

    view: GemmView
    a: Tensor
    b: Tensor
    out: Tensor
    epilogue: Epilogue = field(default_factory=Epilogue)

    @classmethod
    def of(cls, view: GemmView, dtype: torch.dtype, out: Any = None, seed: int = 0) -> Case:
        a, b = integers(storage(view.a), dtype, seed), integers(storage(view.b), dtype, seed + 1)
        return cls(view, a, b, poisoned(storage(view.d), out or dtype))

    def compiled(self, tile: TileConfig, arch: str = "sm_80", **rest: Any) -> Compiled:
        """:func:`compiled_view` of the view, the types and the epilogue."""
        of = self.view, self.a.dtype, tile, arch, self.out.dtype
        return compiled_view(*of, epilogue=self.epilogue.structure, **rest)


def poisoned(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    poison = torch.nan if dtype.is_floating_point else torch.iinfo(dtype).max
    return torch.full(shape, poison, dtype=torch.float32).to(dtype)


@dataclass
class Ran:
    """An output after a kernel ran: its elements, which of them it wrote, and the launch.

    ``statistics`` are the partial sums of an epilogue's columns, (CTAs along m, 2, columns).
    """

    out: Tensor
    written: Tensor
    launch: HostLaunch
    stats: Stats = field(repr=False)
    statistics: Tensor | None = None


def run_case(
    case: Case,
    compiled: Compiled,
    *,
    splits: int = 1,
    most: int = 2,
    place: int = 0,
    shift: tuple[int, int, int] = (0, 0, 0),
    **options: Any,
) -> Ran:
    """Run all CTAs of a kernel; raises a Fault where it breaks a rule of the machine.

    Of a kernel that keeps the parts of its sums, the output is (splits, *shape of D). ``shift`` is
    how many bytes behind a multiple of 16 the three tensors start. A persistent kernel has
    at most ``most`` CTAs.
    """
    memory, view, epilogue = Memory(), case.view, case.epilogue
    partial = compiled.spec.split == "partial"
    out = torch.stack([case.out] * splits) if partial else case.out
    name = "sums" if compiled.spec.split == "atomic" else "d"
    a, _ = _on_device(memory, "a", case.a, view.a, shift[0])
    b, _ = _on_device(memory, "b", case.b, view.b, shift[1])
    d, out = _on_device(memory, name, out, view.d, shift[2])
    indices = [
        None if index is None else _on_device(memory, f"index {i}", index)[0].address
        for i, index in enumerate(map(index_buffer, (view.a, view.b, view.d)))
    ]
    vectors, sources = (
        tuple(_on_device(memory, f"{name} {i}", t, like)[0].address for i, t in enumerate(found))
        or None
        for name, found, like in (
            ("vector", epilogue.vectors, None),
            ("source", epilogue.sources, view.d),
        )
    )
    sums, parts = None, None
    if epilogue.statistics:
        shape = compiled.spec.rows_of_sums(view.m, most), 2, view.l * view.n
        sums, parts = _on_device(memory, "statistics", torch.full(shape, torch.nan))
    ctas = (most,) if compiled.spec.tile.persistent else ()
    places = (place,) if compiled.spec.concurrent else ()
    launch = launch_of(
        compiled.program, compiled.function, a.address, b.address, d, *indices,
        as_argument((splits, case.out.numel(), *places, *ctas, *runtime_integers(view).values())),
        epilogue.numbers or None, vectors, sources,
        None if sums is None else sums.address,
    )  # fmt: skip
    assert launch.shared_bytes <= compiled.spec.smem_bytes  # as planned, or legality means nothing
    options |= {"shared_bytes": launch.shared_bytes, "cluster": launch.cluster}
    stats = run(compiled.program, memory, launch.arguments, launch.grid, **options)
    if compiled.spec.split == "atomic":
        written = torch.ones(out.shape, dtype=torch.bool)
    else:
        found = torch.from_numpy(memory.written(memory.find("d")))[shift[2] :]
        written = found.view(-1, out.itemsize).all(dim=1).view(out.shape)
    return Ran(out, written, launch, stats, parts)


def _on_device(
    memory: Memory, name: str, tensor: Tensor, layout: OperandLayout | None = None, shift: int = 0
) -> tuple[DeviceTensor, Tensor]:
    """A copy of a tensor in the machine, ``shift`` bytes into memory of its own, and the copy.

    Only the output may be written, and an element by one thread. ``layout`` is that of an operand,
    which has the tensor's shape and strides.
    """
    raw = torch.zeros(shift + tensor.nbytes, dtype=torch.uint8)
    copy = raw[shift:].view(tensor.dtype).view(tensor.shape).copy_(tensor)
    written = name in ("d", "statistics")
    address = memory.add(raw.numpy(), name, writable=written or name == "sums", output=written)
    dtype = "uint8" if "float8" in str(tensor.dtype) else dtype_name(tensor.dtype)
    shape, stride = tuple(tensor.shape), None
    if layout is not None:
        stored = stages(layout)[-1].layout
        shape, stride = (tuple(map(int, t)) for t in (stored.shape, stored.stride))
    return DeviceTensor(address + shift, shape, dtype, stride), copy


def reference(case: Case) -> tuple[Tensor, Tensor]:
    """The output in float64, and which elements are written, by the definition of a view."""
    shape = case.out.shape
    out, written = case.out.double().flatten(), torch.zeros(shape, dtype=torch.bool).flatten()
    for l in range(case.view.l):
        view = case.view.at(l) if len(case.view.a.shape) > 2 else case.view
        a, b = read(view.a, case.a, view.m, view.k), read(view.b, case.b, view.n, view.k)
        offset, valid = located(view.d, view.m, view.n)
        out[offset[valid]] = (a @ b.T)[valid]
        written[offset[valid]] = True
    return out.view(shape), written.view(shape)


def read(layout: OperandLayout, tensor: Tensor, rows: int, columns: int) -> Tensor:
    """An operand as a matrix in float64; what is not stored is 0."""
    offset, valid = located(layout, rows, columns)
    memory = torch.cat([tensor.double().flatten(), torch.zeros(1, dtype=torch.float64)])
    return torch.where(valid, memory[offset], 0.0)


def located(layout: OperandLayout, rows: int, columns: int) -> tuple[Tensor, Tensor]:
    offset, valid = locate(layout, torch.arange(rows)[:, None], torch.arange(columns)[None])
    shape = (rows, columns)
    return torch.as_tensor(offset).expand(shape), torch.as_tensor(valid).expand(shape)


def check_exact(case: Case, ran: Ran) -> None:
    """Check that every element to be written is, exactly, and that nothing else is touched."""
    want, written = reference(case)
    assert torch.equal(ran.written, written)
    got, rounded = (t.double() for t in (ran.out[written], convert(want[written], case.out.dtype)))
    torch.testing.assert_close(got, rounded, rtol=0, atol=0, equal_nan=True)
    words = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[case.out.itemsize]
    assert torch.equal(ran.out.view(words)[~written], case.out.view(words)[~written])


def check_not_finite(case: Case, ran: Ran) -> None:
    """Check that some elements, not all, are finite, and that those are which the case has."""
    want, _ = reference(case)
    assert 0 < int(want.isfinite().sum()) < want.numel()
    torch.testing.assert_close(ran.out.double(), want, rtol=0, atol=0, equal_nan=True)


def check_view_runs(
    view: GemmView,
    dtype: torch.dtype,
    tile: TileConfig,
    *,
    out: Any = None,
    most: int = 2,
    **rest: Any,
) -> Ran:
    """Compile, run and compare; returns what ran. ``rest`` are those of ``spec_of``."""
    case = Case.of(view, dtype, out)
    ran = run_case(case, case.compiled(tile, **rest), most=most)
    check_exact(case, ran)
    return ran


def check_kind_runs(view: GemmView, kind: Kind, tile: TileConfig) -> Ran:
    """The same for a kind of data."""
    return check_view_runs(view, kind.dtype, tile, arch=kind.arch, out=kind.out, kind=kind.name)


def check_parts(
    view: GemmView, dtype: torch.dtype, tile: TileConfig, splits: int, arch: str = "sm_90a"
) -> Compiled:
    """Check that the parts of split sums add up to them; returns the kernel of the parts."""
    case = Case.of(view, dtype, torch.float32)
    compiled = case.compiled(tile, arch, split="partial")
    ran = run_case(case, compiled, splits=splits)
    assert torch.equal(ran.out.double().sum(0), reference(case)[0])
    return compiled


def check_epilogue(
    view: GemmView,
    dtype: torch.dtype,
    tile: TileConfig,
    steps: str,
    *,
    arch: str = "sm_90a",
    out: Any = None,
    **rest: Any,
) -> None:
    """Check what follows sums, all exact: some of "bias residual relu statistics", in this order.

    Numbers are small integers; ``rest`` are those of ``spec_of``.
    """
    case, epilogue = Case.of(view, dtype, out), list[Any]()
    sums, written = reference(case)
    if "bias" in steps:
        epilogue.append(Bias(integers((sums.shape[-1],), torch.float32, 3)))
        sums += epilogue[-1].by
    if "residual" in steps:
        epilogue.append(Residual(integers(tuple(sums.shape), case.out.dtype, 4)))
        sums += epilogue[-1].source
    if "relu" in steps:
        epilogue.append(Activation("relu"))
        sums = sums.relu()
    case.epilogue = Epilogue(tuple(epilogue), statistics="statistics" in steps)
    ran = run_case(case, case.compiled(tile, arch, **rest))
    stored = sums.to(case.out.dtype)
    assert torch.equal(ran.written, written)
    assert torch.equal(ran.out, stored)
    if ran.statistics is not None:
        rows = stored.double().view(-1, sums.shape[-1])
        want = torch.stack([rows.sum(0), (rows**2).sum(0)])
        assert torch.equal(ran.statistics.double().sum(0), want)
    assert (ran.statistics is not None) == case.epilogue.statistics
