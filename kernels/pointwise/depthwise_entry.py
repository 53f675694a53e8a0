"""Host code that depthwise kernels share: a launch takes flat memory and the nest's integers."""

from __future__ import annotations

from typing import Any

import cutlass.cute as cute

from ..common.plain_types import AnyTuple
from ..common.runtime_integers import RuntimeIntegers
from ..common.walk import bind


class DepthwiseEntry:
    """Base of the kernels of a shape, which define ``start``.

    Their arguments are flat tensors, the integers of the shape's nest, and the numbers, vectors and
    sources that an epilogue reads: tuples, or None.
    """

    shape: Any

    @cute.jit
    def __call__(
        self, a: cute.Tensor, b: cute.Tensor, target: cute.Tensor, integers: AnyTuple,
        numbers: Any, vectors: Any, sources: Any, stream: Any,
    ) -> None:  # fmt: skip
        pointers = a.iterator, b.iterator, target.iterator
        args = bind(self.shape.nest, integers)
        self.start(pointers, args, (numbers, vectors, sources), stream)

    def start(
        self, pointers: AnyTuple, args: RuntimeIntegers, reads: AnyTuple, stream: Any
    ) -> None:
        """Launch; this is host code. ``pointers`` are those of A, B and D."""
        raise NotImplementedError
