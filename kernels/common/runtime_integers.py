"""The runtime integers of a view as kernel arguments; everything else of a layout is a constant."""

from __future__ import annotations

from typing import Any

from layoutconv.algebra.int_tuple import map_leaves
from layoutconv.algebra.stride import ScaledBasis
from layoutconv.algebra.symint import is_runtime

from .dsl import Int32, Uint32, cutlass


class RuntimeIntegers:
    """Runtime integers by expression, with fast divisors for those that divide coordinates.

    It crosses the kernel boundary as MLIR values (the DSL's protocol for plain Python objects).
    """

    def __init__(self, values: dict[str, Any], divisors: dict[str, Any]) -> None:
        self.values = values
        self.divisors = divisors

    def __extract_mlir_values__(self) -> list[Any]:
        parts = [*self.values.values(), *self.divisors.values()]
        return [v for part in parts for v in cutlass.extract_mlir_values(part)]

    def __new_from_mlir_values__(self, values: list[Any]) -> RuntimeIntegers:
        rest = list(values)

        def take(template: Any) -> Any:
            count = len(cutlass.extract_mlir_values(template))
            part = rest[:count]
            del rest[:count]
            return cutlass.new_from_mlir_values(template, part)

        new_values = {name: take(v) for name, v in self.values.items()}
        return RuntimeIntegers(new_values, {name: take(d) for name, d in self.divisors.items()})

    def integer(self, leaf: Any, kind: Any) -> Any:
        """Return a leaf as a kernel integer of type ``kind``, or as a Python int if static."""
        return kind(self.values[str(leaf)]) if is_runtime(leaf) else int(leaf)

    def stride(self, stride: Any, kind: Any) -> Any:
        """Return a stride with its leaves as ``integer`` returns them."""

        def bind(d: Any) -> Any:
            if isinstance(d, ScaledBasis):
                return ScaledBasis(self.integer(d.value, kind), d.path)
            return self.integer(d, kind)

        return map_leaves(bind, stride)

    def divisor(self, leaf: Any) -> Any:
        """Return the divisor of an extent: a fast divisor, or ``Extent`` if the launch has none."""
        return self.divisors[str(leaf)] if str(leaf) in self.divisors else Extent(int(leaf))


class Extent:
    """A static extent. It divides unsigned: cheaper, and right for dividends of 0 or more."""

    def __init__(self, value: int) -> None:
        self.value = value

    def __mul__(self, other: Any) -> Any:
        return self.value * other

    __rmul__ = __mul__

    def __rdivmod__(self, c: Any) -> Any:
        if isinstance(c, int):
            return divmod(c, self.value)
        if self.value == 1:
            return c, 0
        quotient = Int32(Uint32(c) // Uint32(self.value))
        return quotient, c - quotient * self.value
