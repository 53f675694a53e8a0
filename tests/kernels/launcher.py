"""The template on small problems: compile a kernel, launch it by its own host code, run it.

The machine of ``tests/machine`` stands in for the GPU. Data are small integers, so that every
product and every sum is exact in every dtype and in any order: what a kernel writes must equal a
reference in float64 that is computed from the definition of a view alone, ``gemm_view.locate``.
"""

from __future__ import annotations

import tempfile
from dataclasses import dataclass, field
from typing import Any

import torch
from layoutconv.kernels.build import build
from layoutconv.kernels.check import check_view
from layoutconv.kernels.spec import Spec, vectors_of
from layoutconv.kernels.structure import index_buffer, runtime_integers, signature
from layoutconv.kernels.tile import Tile
from torch import Tensor

from layoutconv.epilogue import Epilogue
from layoutconv.gemm_view import GemmView, OperandLayout, locate, stages

from ..machine import DeviceTensor, HostLaunch, Memory, Stats, launch_of, parse, run
from ..machine.ptx import Kernel

# Of a dtype of data: the kernel's name for it.
NAMES = {torch.float16: "float16", torch.bfloat16: "bfloat16", torch.float32: "tfloat32"}
DTYPES = list(NAMES)


@dataclass(frozen=True)
class Compiled:
    """A kernel as host code, PTX and machine code."""

    spec: Spec
    function: Any
    ptx: str
    cubin: bytes
    program: Kernel


def spec_of(
    view: GemmView,
    dtype: torch.dtype,
    tile: Tile,
    arch: str = "sm_80",
    out: Any = None,
    **rest: Any,
) -> Spec:
    """The spec for data of ``dtype``, and results of the same or ``out``; ``rest`` are its fields.

    ``aligned``, bytes that the three tensors start at multiples of, may be among them.
    """
    kind = rest.pop("kind", NAMES.get(dtype, dtype_name(dtype)))
    aligned = rest.pop("aligned", (16, 16, 16))
    vectors, along = vectors_of(view, kind, dtype_name(out or dtype), aligned)
    return Spec(kind, dtype_name(out or dtype), tile, arch, vectors, along, **rest)


def compile_view(view: GemmView, *of: Any, **rest: Any) -> Compiled:
    """Compile the kernel of a view and of ``spec_of(view, *of, **rest)``."""
    spec = spec_of(view, *of, **rest)
    check_view(view, spec.along)
    with tempfile.TemporaryDirectory() as folder:
        function = build(view, spec, dump=folder)
        program = parse(function.__ptx__)
        return Compiled(spec, function, function.__ptx__, function.__cubin__, program)


_compiled: dict[Any, Compiled] = {}


def compiled_view(view: GemmView, *of: Any, **rest: Any) -> Compiled:
    """:func:`compile_view`, once per kernel."""
    spec = spec_of(view, *of, **rest)
    key = signature(view, spec.along), spec
    if key not in _compiled:
        _compiled[key] = compile_view(view, *of, **rest)
    return _compiled[key]


def dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def half_line(dtype: torch.dtype) -> int:
    """The shorter ``k`` of a tile: 64 bytes of elements."""
    return 64 // dtype.itemsize


def storage(layout: OperandLayout) -> tuple[int, ...]:
    """The shape of the tensor that an operand expects."""
    return tuple(map(int, stages(layout)[-1].layout.shape))


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


def poisoned(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    poison = torch.nan if dtype.is_floating_point else torch.iinfo(dtype).max
    return torch.full(shape, poison, dtype=torch.float32).to(dtype)


@dataclass
class Ran:
    """What a kernel did to an output: its elements, which of them it wrote, how it got there.

    ``statistics`` are the partial sums of an epilogue's columns, (CTAs along m, 2, columns).
    """

    out: Tensor
    written: Tensor
    launch: HostLaunch
    stats: Stats = field(repr=False)
    statistics: Tensor | None = None


def run_case(case: Case, compiled: Compiled, *, splits: int = 1, **options: Any) -> Ran:
    """Run all CTAs of a kernel; raises a Fault where it breaks a rule of the machine.

    Of a kernel that keeps the parts of its sums, the output is (splits, *shape of D).
    """
    memory, view, epilogue = Memory(), case.view, case.epilogue
    partial = compiled.spec.split == "partial"
    out = torch.stack([case.out] * splits) if partial else case.out.clone()
    tensors = [_on_device(memory, *pair) for pair in (("a", case.a), ("b", case.b))]
    name = "sums" if compiled.spec.split == "atomic" else "d"
    tensors.append(_on_device(memory, name, out, tuple(case.out.shape)))
    indices = [
        None if index is None else _on_device(memory, f"index {i}", index)
        for i, index in enumerate(map(index_buffer, (view.a, view.b, view.d)))
    ]
    columns, sources = (
        tuple(_on_device(memory, f"{name} {i}", t) for i, t in enumerate(found)) or None
        for name, found in (("column", epilogue.columns), ("source", epilogue.sources))
    )
    parts = None
    if epilogue.statistics:
        m_tiles = -(-view.m // compiled.spec.tile.m)
        parts = torch.full((m_tiles, 2, view.l * view.n), torch.nan)
    launch = launch_of(
        compiled.program, compiled.function, *tensors, *indices,
        (splits, case.out.numel(), *runtime_integers(view).values()),
        epilogue.numbers or None, columns, sources,
        None if parts is None else _on_device(memory, "statistics", parts.view(-1)),
    )  # fmt: skip
    options["shared_bytes"] = launch.shared_bytes
    stats = run(compiled.program, memory, launch.arguments, launch.grid, **options)
    if compiled.spec.split == "atomic":
        written = torch.ones(out.shape, dtype=torch.bool)
    else:
        found = torch.from_numpy(memory.written(memory.find("d")))
        written = found.view(-1, out.itemsize).all(dim=1).view(out.shape)
    return Ran(out, written, launch, stats, parts)


def _on_device(memory: Memory, name: str, tensor: Tensor, shape: Any = None) -> DeviceTensor:
    """A tensor in the machine; only the output may be written, and an element by one thread."""
    raw = tensor.view(torch.uint8).numpy()
    written = name in ("d", "statistics")
    address = memory.add(raw, name, writable=written or name == "sums", output=written)
    dtype = "uint8" if "float8" in str(tensor.dtype) else dtype_name(tensor.dtype)
    return DeviceTensor(address, shape or tuple(tensor.shape), dtype)


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
    """What should be written is, by its exact value; nothing else is touched."""
    want, written = reference(case)
    assert torch.equal(ran.written, written)
    got, rounded = ran.out[written].double(), want[written].to(case.out.dtype).double()
    torch.testing.assert_close(got, rounded, rtol=0, atol=0, equal_nan=True)
    words = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[case.out.itemsize]
    assert torch.equal(ran.out.view(words)[~written], case.out.view(words)[~written])


def check_view_runs(
    view: GemmView,
    dtype: torch.dtype,
    tile: Tile,
    *,
    arch: str = "sm_80",
    out: Any = None,
    kind: str | None = None,
    **options: Any,
) -> Ran:
    """Compile, run and compare; returns what ran."""
    case = Case.of(view, dtype, out)
    rest = {"kind": kind} if kind else {}
    ran = run_case(case, compiled_view(view, dtype, tile, arch, out, **rest), **options)
    check_exact(case, ran)
    return ran
