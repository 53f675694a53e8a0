"""``Layout``: a shape and a stride, and the function of coordinates that they are."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from .errors import LayoutTypeError
from .int_tuple import IntTuple, congruent, crd2idx, depth, map_leaves, product, rank


class Layout:
    """A function from coordinates to offsets: the inner product with ``stride`` after taking the profile of ``shape``.

    >>> L = Layout((4, (2, 3)), (1, (4, 8)))
    >>> print(L, L(1, 5), L(23))
    (4,(2,3)):(1,(4,8)) 21 23
    """

    __slots__ = ("shape", "stride")

    shape: IntTuple
    stride: IntTuple

    def __init__(self, shape: IntTuple, stride: IntTuple = None) -> None:
        if stride is None:
            stride = compact_stride(shape)
        if not congruent(shape, stride):
            raise LayoutTypeError(
                f"Layout: shape {_text(shape)} and stride {_text(stride)} have different profiles"
            )
        object.__setattr__(self, "shape", shape)
        object.__setattr__(self, "stride", stride)

    def __setattr__(self, name: str, value: Any) -> None:
        raise AttributeError(f"Layout is immutable; cannot set {name}")

    def __reduce__(self) -> Any:
        return Layout, (self.shape, self.stride)

    def __call__(self, *crd: Any) -> Any:
        return crd2idx(crd[0] if len(crd) == 1 else crd, self.shape, self.stride)

    def __getitem__(self, mode: int) -> Layout:
        if not isinstance(self.shape, tuple):
            if mode in (0, -1):
                return self
            raise IndexError(f"Layout {self} has no mode {mode}")
        return Layout(self.shape[mode], self.stride[mode])

    def __len__(self) -> int:
        return rank(self.shape)

    def __iter__(self) -> Iterator[Layout]:
        return (self[i] for i in range(len(self)))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Layout):
            return NotImplemented
        return self.shape == other.shape and self.stride == other.stride

    def __hash__(self) -> int:
        return hash((self.shape, self.stride))

    def __str__(self) -> str:
        return f"{_text(self.shape)}:{_text(self.stride)}"

    def __repr__(self) -> str:
        return f"Layout({self.shape!r}, {self.stride!r})"

    @property
    def rank(self) -> int:
        return rank(self.shape)

    @property
    def depth(self) -> int:
        return depth(self.shape)

    def size(self) -> Any:
        """How many coordinates the domain has."""
        return product(self.shape)


def compact_stride(shape: IntTuple, first: Any = 1) -> IntTuple:
    """The strides of the compact colexicographic layout of ``shape``.

    >>> compact_stride((4, (2, 3)))
    (1, (4, 8))
    """
    current = first

    def take(extent: Any) -> Any:
        nonlocal current
        stride, current = current, current * extent
        return stride

    return map_leaves(take, shape)


def _text(t: IntTuple) -> str:
    return "(" + ",".join(map(_text, t)) + ")" if isinstance(t, tuple) else str(t)
