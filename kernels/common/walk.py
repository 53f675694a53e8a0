"""Loop nests in traced kernels: extents are arguments, forms are linear in the loop indices."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from layoutconv.planning.loop_nest import Nest

from .dsl import Boolean, Int32, Int64, cute, cutlass
from .runtime_integers import RuntimeIntegers

TYPES = {
    "float16": cutlass.Float16,
    "bfloat16": cutlass.BFloat16,
    "float32": cutlass.Float32,
    "float64": cutlass.Float64,
    "int8": cutlass.Int8,
    "uint8": cutlass.Uint8,
    "int16": cutlass.Int16,
    "int32": cutlass.Int32,
    "int64": cutlass.Int64,
}

Values = list[Any]  # a nest's forms: Int64 for offsets in memory, Int32 for bounded coordinates


def bind(nest: Nest, integers: Any) -> RuntimeIntegers:
    """Bind a nest's integers as arguments on the host, named by number as ``mapped`` visits them.

    Further integers follow. All outer loops but the last, and all inner loops but the last, get
    fast divisors.
    """
    values = {str(i): Int64(value) for i, value in enumerate(integers)}
    outer, inner = len(nest.outer), len(nest.inner)
    dividing = [*range(outer - 1), *range(outer, outer + inner - 1)]
    divisors = {str(i): cute.fast_divmod_create_divisor_v2(Int32(values[str(i)])) for i in dividing}
    return RuntimeIntegers(values, divisors)


class Walk:
    """The forms of a nest in a kernel. Python integers fold, which makes unrolled loops cheaper."""

    def __init__(self, nest: Nest, args: RuntimeIntegers) -> None:
        names = map(str, range(len(args.values)))
        self.named = nest.mapped(lambda _: next(names))
        self.args = args
        self.further = [args.values[name] for name in names]
        self.memory = {form.operand: i for i, form in enumerate(self.named.memories)}

    def indices(self, loops: tuple[str, ...], linear: Any) -> Values:
        """Split a linear index over ``loops`` into one index per loop."""
        found = []
        for name in loops[:-1]:
            linear, index = divmod(linear, self.args.divisors[name])
            found.append(index)
        return [*found, linear] if loops else []

    def outer(self, linear: Any) -> Values:
        """Evaluate all forms at a linear index over the outer loops, which are not summed."""
        return self.outer_at(self.indices(self.named.outer, linear))

    def outer_at(self, indices: Values) -> Values:
        """Evaluate all forms at indices of the outer loops."""
        return [
            self._sum(form, form.outer, indices, self._integer(form, form.offset))
            for form in self.named.forms
        ]

    def inner(self, row: Values, linear: Any) -> Values:
        """Evaluate all forms at a linear index over the inner (summed) loops, from ``row``, their
        values at the outer loops.
        """
        return self.moved(row, self.indices(self.named.inner, linear))

    def moved(self, row: Values, indices: Values) -> Values:
        """Evaluate all forms at indices of the inner loops, from their values at the outer ones."""
        return [
            self._sum(form, form.inner, indices, start)
            for form, start in zip(self.named.forms, row, strict=True)
        ]

    def tile(self, values: Values, loop: int, t: int, u: int) -> Values:
        """Move all forms ``t`` along outer loop ``loop``, and ``u`` along the first inner one."""
        found = []
        for form, value in zip(self.named.forms, values, strict=True):
            value = self._sum(form, form.outer[loop : loop + 1], [t], value)
            found.append(self._sum(form, form.inner[:1], [u] * len(form.inner[:1]), value))
        return found

    def inside(
        self, values: Values, operand: int, among: Collection[int] | None = None
    ) -> Boolean | None:
        """Return whether an operand has an element at ``values``; None if it always has.

        ``among``: check only the forms with these numbers.
        """
        sign: Any = None
        for number, (form, value) in enumerate(zip(self.named.forms, values, strict=True)):
            if form.bound is None or form.operand != operand:
                continue
            if among is not None and number not in among:
                continue
            value = Int32(value)
            outside = value | (self._integer(form, form.bound) - 1 - value)
            sign = outside if sign is None else sign | outside
        return None if sign is None else sign >= 0

    def pointer(self, base: Any, values: Values, operand: int, there: Any, vector: int = 1) -> Any:
        """Return a pointer to an operand's element, aligned to ``vector`` elements; to its first
        element if not ``there``.
        """
        offset = Int64(values[self.memory[operand]])
        if there is not None:
            offset = select(there, offset, Int64(0))
        return base + (cute.assume(offset, divby=vector) if vector > 1 else offset)

    def _sum(self, form: Any, steps: tuple[Any, ...], indices: Values, start: Any) -> Any:
        for step, index in zip(steps, indices, strict=True):
            if isinstance(step, int) or (isinstance(index, int) and index == 0):
                continue  # a step of 0
            kind = Int64 if form.bound is None else Int32
            start = start + kind(index) * self._integer(form, step)
        return start

    def _integer(self, form: Any, name: Any) -> Any:
        if isinstance(name, int):
            return name
        return (Int64 if form.bound is None else Int32)(self.args.values[name])


def select(condition: Any, yes: Any, no: Any) -> Any:
    """Return ``yes if condition else no`` without a branch, for two values of one type."""
    return type(yes)(cutlass.select_(Boolean(condition), yes, no))


def read(pointer: Any, dtype: Any, vector: int) -> Any:
    """Read a vector of elements to registers in one load."""
    result = cute.make_rmem_tensor(vector, dtype)
    cute.autovec_copy(cute.make_tensor(pointer, cute.make_layout(vector)), result)
    return result


def at(pointer: Any, offset: Any) -> Any:
    """Read the element at an offset."""
    return cute.make_tensor(pointer + offset, cute.make_layout(1))[0]


def put(pointer: Any, offset: Any, value: Any) -> None:
    """Write the element at an offset."""
    cute.make_tensor(pointer + offset, cute.make_layout(1))[0] = value
