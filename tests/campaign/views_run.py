"""Run a hand-written view, into memory that keeps what is not written, against sums over tables."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

import layoutconv as lc
from layoutconv.view.epilogue import (
    Activation,
    Bias,
    Clamp,
    Epilogue,
    EpilogueStep,
    Residual,
    Scale,
)
from layoutconv.view.gemm_view import GemmView

from . import limits
from .bench import Bench, check_same, poison
from .data import Memory, exact_sizes
from .dense_reference import Sums
from .draws import Draw
from .ending import GRAIN, STEPS, activate, dtype_of
from .layer import check_statistics, typical
from .operand import Operand
from .oracle import Expected, WrongResultError
from .views import View

SLOPE, LOW, HIGH = 0.25, -20.0, 30.0


def run_view(p: View, bench: Bench) -> None:
    """Raise ``WrongResultError`` for what is not as it should be, and whatever a call raises."""
    bench.stage("tensors")
    memory = Memory(bench.device, p.seed)
    made = Tensors(p, memory)
    found: list[tuple[Tensor, Any]] = []
    for name in ("first call", "second call"):
        poison(bench.device, [made.out.numel() * made.out.itemsize])
        bench.stage(name)
        found.append(bench.fault(made.call(), made))
        bench.wait(f"{name}: the device")
    if not bench.runs:
        return
    first, second = (d.as_strided(p.d.memory, p.d.strides) for d, _ in found)
    check_same("d", first, second)  # of a new tensor, without the gaps between its elements
    memory.check_untouched()
    bench.stage("reference")
    check_view(p, made, *found[1], bench)


class Tensors:
    """The view, and tensors for it."""

    def __init__(self, p: View, memory: Memory) -> None:
        self.p, self.memory = p, memory
        self.dtype = torch.int8 if p.dtype == "int4" else dtype_of(p.dtype)
        self.kind = dtype_of(p.out_dtype)
        draw = Draw("view numbers", p.seed)
        _, n, k, l = p.sizes
        self.indices = [_index(o, memory, written=o is p.d) for o in (p.a, p.b, p.d)]
        layouts = [
            o.layout(name, p.letters, index)
            for name, o, index in zip("ABD", (p.a, p.b, p.d), self.indices, strict=True)
        ]
        self.view = GemmView(*layouts)
        self.a, self.b = self._factors(draw, k)
        self.out = self._output()
        self.columns = (l * n,)
        self.steps, self.tensors = self._steps()

    def _factors(self, draw: Draw, k: int) -> list[Tensor]:
        p, made = self.p, []
        most = limits.arithmetic(self.dtype, p.precision, tensor_cores=True).integers / 2
        if self.kind not in (torch.float64, torch.int32) or p.steps:
            most = min(most, 2.0**24)
        most /= 4 * GRAIN**2 if p.steps else 1
        sizes = exact_sizes(draw, self.dtype, [k], 2, most, typical(draw, self.kind))
        shares, tops = (sizes.share, 1.0), sizes.tops
        if p.dtype == "int4":
            tops = (min(tops[0], 7), min(tops[1], 7))
        scales = (1.0, max(1, k) ** -0.5)
        for i, operand in enumerate((p.a, p.b)):
            shape = operand.memory
            if p.numbers == "exact":
                values = self.memory.integers(shape, tops[i], shares[i])
            else:
                values = (self.memory.normal(shape, torch.float64) * scales[i]).to(self.dtype)
            values = values.double()
            made.append(
                self.memory.place("ab"[i], values, self.dtype, operand.strides, p.starts[i])
            )
        return made

    def _output(self) -> Tensor:
        """Memory for the result, all of it poison."""
        p, itemsize = self.p, self.kind.itemsize
        before = 256 + p.starts[2] * itemsize
        self.held = torch.full(
            (before + p.d.span * itemsize + 256,), 255, dtype=torch.uint8, device=self.a.device
        )
        own = self.held[before : before + p.d.span * itemsize].view(self.kind)
        return own.as_strided(p.d.memory, p.d.strides)

    def _steps(self) -> tuple[list[EpilogueStep], list[Any]]:
        """The steps of the epilogue, and the tensor or number of each."""
        p, exact, made, held = self.p, self.p.numbers == "exact", list[EpilogueStep](), list[Any]()
        for name, word in p.steps:
            value: Any = None
            if name == "scale":
                value = 0.5 if word == "number" else self._column(word, scale=True)
                made.append(Scale(value))
            elif name == "bias":
                value = self._column(word, scale=False)
                made.append(Bias(value))
            elif name == "residual":
                kind, shape = dtype_of(word), p.d.memory
                values = (
                    self.memory.integers(shape, 9) if exact else self.memory.normal(shape, kind)
                )
                value = self.memory.place("residual", values, kind, p.d.strides)
                made.append(Residual(value, 2.0))
            elif name == "activation":
                made.append(Activation(word, SLOPE))
            else:
                made.append(Clamp(LOW, HIGH))
            held.append(value)
        return made, held

    def _column(self, word: str, *, scale: bool) -> Tensor:
        kind = dtype_of(word)
        if self.p.numbers != "exact":
            values = self.memory.normal(self.columns, kind)
        elif scale:
            of = {"generator": self.memory.generator(), "device": self.memory.device}
            some = torch.tensor(STEPS, dtype=torch.float64, device=self.memory.device)
            values = some[torch.randint(0, len(STEPS), self.columns, **of)]
        else:
            values = self.memory.integers(self.columns, 9)
        return self.memory.place("column", values, kind, (1,))

    def call(self) -> tuple[Tensor, Any]:
        """Return what ``execute`` gives: (D, statistics)."""
        p, a, b = self.p, self.a, self.b
        options: dict[str, Any] = {"atomic": p.atomic}
        if p.dtype == "int4":
            a, b = _packed(a, p.a), _packed(b, p.b)
            options["dtype"] = "int4"
        if p.dtype == "float32":
            options["precision"] = p.precision
        if self.steps or p.statistics:
            options["epilogue"] = Epilogue(tuple(self.steps), p.statistics)
        if p.out:
            self.held.fill_(255)
            options["out"] = self.out
        else:
            options["out_dtype"] = self.kind
        found = lc.execute(self.view, a, b, **options)
        d, statistics = found if p.statistics else (found, None)
        if not p.out:
            return _flat(d), statistics
        start = 256 + p.starts[2] * self.kind.itemsize
        whole = self.held[start : start + p.d.span * self.kind.itemsize]
        return whole.clone().view(self.kind), statistics


def _packed(values: Tensor, operand: Operand) -> Tensor:
    """int4, two in a byte along the mode that is contiguous, in memory with the same gaps."""
    at = operand.strides.index(1)
    packed = lc.pack_int4(values.movedim(at, -1)).movedim(-1, at)
    strides = [d // 2 if i != at else 1 for i, d in enumerate(operand.strides)]
    made = torch.empty_strided(packed.shape, strides, dtype=torch.int8, device=values.device)
    return made.copy_(packed)


def _index(operand: Operand, memory: Memory, *, written: bool) -> Tensor | None:
    """Entries of -1 up to the first extent of memory; none twice where it is written."""
    if not operand.index:
        return None
    of = {"generator": memory.generator(), "device": memory.device}
    rows, entries = operand.memory[0], operand.index
    if written:
        index = torch.randperm(rows, **of)[:entries]
        index = torch.nn.functional.pad(index, (0, entries - len(index)), value=-1)
    else:
        index = torch.randint(0, rows, (entries,), **of)
    absent = torch.rand(entries, **of) < operand.absent
    return torch.where(absent, -1, index).int()


def check_view(p: View, made: Tensors, got: Tensor, statistics: Any, bench: Bench) -> None:
    """Every element that is written, and every other byte."""
    a, b, place, there = _tables(p, made)
    m, n, k, l = p.sizes
    arithmetic = bench.arithmetic(made.dtype, p.precision)

    def product(x: Tensor, y: Tensor) -> Tensor:
        return x @ y.transpose(1, 2)

    sums = Sums.of(product, a, b, k)
    exact = p.numbers == "exact"
    error = None if exact else arithmetic.of_sums(sums.s1, sums.s2, k)
    value, error = _finished(p, made, sums.value, error, place, there)
    wanted = there.reshape(-1)
    at = place.reshape(-1)[wanted]
    found = got[at]
    want = Expected(
        value.reshape(-1)[wanted], None if error is None else error.reshape(-1)[wanted], terms=k
    )
    bench.check("d", found, want, made.kind)
    if at.numel() != at.unique().numel():
        raise AssertionError("the campaign wrote a view that writes an element twice")
    if p.out:
        _check_rest(p, made, at)
    else:
        _check_zeros(p, got, at)
    if p.statistics:
        stored = torch.zeros_like(there, dtype=torch.float64)
        stored[there] = found.double()
        rows = stored.permute(1, 0, 2).reshape(m, l * n) if l > 1 else stored[0]
        check_statistics(rows, statistics, bench)


def _check_rest(p: View, made: Tensors, at: Tensor) -> None:
    """All bytes but those of elements that are written are still poison."""
    itemsize = made.kind.itemsize
    rest = torch.ones(made.held.numel(), dtype=torch.bool, device=at.device)
    start = 256 + p.starts[2] * itemsize
    rest[start : start + p.d.span * itemsize].view(-1, itemsize)[at] = False
    wrong = rest & (made.held != 255)
    if wrong.any():
        first = int(wrong.nonzero()[0, 0]) - start
        raise WrongResultError(
            f"d: byte {first} of {p.d.span * itemsize} was written, which no element has"
        )


def _check_zeros(p: View, got: Tensor, at: Tensor) -> None:
    """Check that a new tensor is zero where nothing is written, except between its elements."""
    rest = torch.zeros(got.numel(), dtype=torch.bool, device=got.device)
    rest.as_strided(p.d.memory, p.d.strides).fill_(True)
    rest[at] = False
    if bool((got[rest].double() != 0).any()):
        raise WrongResultError("d: what is not written is not zero in a new tensor")


def _tables(p: View, made: Tensors) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """A (l, m, k) and B (l, n, k) in float64, and where D (l, m, n) is written."""
    l = p.sizes[3]
    tables = []
    for operand, tensor, index in zip((p.a, p.b), (made.a, made.b), made.indices, strict=False):
        place, there = _places(operand, index, l, tensor.device)
        values = tensor.as_strided((max(operand.span, 1),), (1,)).double()
        tables.append(torch.where(there, values[place], 0.0))
    place, there = _places(p.d, made.indices[2], l, made.a.device)
    return tables[0], tables[1], place, there


def _places(
    operand: Operand, index: Tensor | None, l: int, device: torch.device
) -> tuple[Tensor, Tensor]:
    modes = (0, 1, 2) if len(operand.modes) > 2 else (0, 1)
    place, there = (t.to(device) for t in operand.addresses(index, *modes))
    if len(modes) == 2:
        return place[None].expand(l, -1, -1), there[None].expand(l, -1, -1)
    return place.permute(2, 0, 1), there.permute(2, 0, 1)


def _finished(
    p: View, made: Tensors, value: Tensor, error: Tensor | None, place: Tensor, there: Tensor
) -> tuple[Tensor, Tensor | None]:
    """The steps of the epilogue in float64, and how far results may be off before rounding."""
    unit = 2.0**-53 if p.dtype == "float64" else 2.0**-24
    l, _, n = value.shape
    for (name, word), held in zip(p.steps, made.tensors, strict=True):
        if name == "scale":
            by = held if isinstance(held, float) else held.double().view(l, 1, n)
            value = value * by
            error = None if error is None else error * abs(by)
        elif name == "bias":
            value = value + held.double().view(l, 1, n)
        elif name == "residual":
            flat = held.as_strided((max(p.d.span, 1),), (1,)).double()
            value = value + 2.0 * torch.where(there, flat[place], 0.0)
        elif name == "activation":
            value = activate(value, word, SLOPE)
            if error is not None:
                error = limits.of_activation(value, error, word, SLOPE)
        else:
            value = value.clamp(LOW, HIGH)
        if error is not None:
            error = error + unit * (value.abs() + 100)
    return value, error


def _flat(tensor: Tensor) -> Tensor:
    modes = zip(tensor.shape, tensor.stride(), strict=True)
    span = 1 + sum((s - 1) * d for s, d in modes) if tensor.numel() else 0
    return tensor.as_strided((span,), (1,))
