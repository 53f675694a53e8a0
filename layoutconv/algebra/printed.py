"""Text that CuTe prints around a layout: C++ types, names, swizzled pointers, coordinates."""

from __future__ import annotations

import re
from typing import Any

from .basis import sum_of_bases
from .composed import ComposedLayout
from .errors import LayoutValueError
from .int_tuple import IntTuple
from .layout import Layout
from .stride import ScaledBasis
from .swizzle import Swizzle
from .tensor import CoordinateEngine, Tensor

# C++ types of tuples, and the swizzle; `{}` may follow their end.
_TYPED = re.compile(r"(?:Shape|Stride|Coord|Tile|Step|Layout)<|<|>")
_NAMESPACE = re.compile(r"\bcute(?:::|\.)(?=[A-Za-z_])")
# Calls whose arguments may be named, and these names in order.
_NAMES = {
    "make_layout": ("shape", "stride"),
    "Layout": ("shape", "stride"),
    "make_ordered_layout": ("shape", "order"),
}
_MARK = re.compile(r"(?:\b(make_layout|make_ordered_layout|Layout)\s*)?\(|\)|,")
_ARGUMENT = re.compile(r"\s*(\w+)\s*=(?=\s*[\w(?-])")
_SHAPE = re.compile(r"(?:make_(?:shape|tuple|coord|tile)\s*\(|[A-Za-z_]\w*\b(?!\s*\()|[^\w:]|\d)*")


def as_calls(written: str) -> str:
    """Rewrite C++ and DSL spelling as calls and tuples alone, in a text of the same length.

    >>> as_calls("Layout<Shape<_4,_8>>{}")
    'Layout(     (_4,_8))  '
    >>> as_calls("cute.make_layout(4, stride=2)")
    '     make_layout(4,        2)'
    """
    written = _without_names(_NAMESPACE.sub(lambda found: " " * len(found[0]), written))
    found, opened = list(written), []
    for token in _TYPED.finditer(written):
        if token[0] != ">":
            opened.append(token)
            continue
        start = opened.pop() if opened else token
        typed = len(start[0]) > 1
        if typed:
            name = "Layout" if start[0] == "Layout<" else " " * (len(start[0]) - 1)
            found[start.start() : start.end()] = name + "("
            found[token.start()] = ")"
        if written[token.end() : token.end() + 2] == "{}":
            found[token.end() : token.end() + 2] = "  "
    return "".join(found)


def _without_names(written: str) -> str:
    """Blank the names of named arguments that already stand in positional order."""
    if "=" not in written:
        return written
    found = list(written)
    open_calls: list[tuple[tuple[str, ...], int]] = []  # names left, start of operand
    for mark in _MARK.finditer(written):
        if mark[0] == ")":
            del open_calls[-1:]
            continue
        if mark[0] != ",":
            open_calls.append((_NAMES.get(mark[1], ()), mark.end()))
        elif open_calls:
            names, start = open_calls.pop()
            alone = names and _SHAPE.fullmatch(
                "".join(found[start : mark.start()])
            )  # two layouts have no names
            open_calls.append((names[1:] if alone else (), mark.end()))
        else:
            continue
        names, _ = open_calls[-1]
        given = _ARGUMENT.match(written, mark.end())
        if given and given[1] in names[:1]:
            found[given.start() : given.end()] = " " * len(given[0])
    return "".join(found)


class Origin:
    """The coordinate at which a tensor of coordinates begins."""

    def __init__(self, at: Any) -> None:
        self.at = at

    def tensor(self, layout: Any) -> Any:
        """Return the tensor of coordinates that begins here."""
        if not isinstance(self.at, tuple) or not isinstance(layout, Layout):
            raise LayoutValueError(f"parse: {self.at} and {layout} are not a tensor of coordinates")
        return Tensor(CoordinateEngine(self.at), layout, sum_of_bases(_bases(self.at)))


def _bases(crd: IntTuple, path: tuple[int, ...] = ()) -> list[Any]:
    if not isinstance(crd, tuple):
        return [ScaledBasis(crd, path)]
    return [term for i, c in enumerate(crd) for term in _bases(c, (*path, i))]


class Pointer:
    """The pointer that CuTe prints between a swizzle of bytes and a layout of elements."""

    def __init__(self, token: str) -> None:
        # C++ prints the bits of an element in brackets, the DSL its type, then a swizzle.
        found = re.search(r"\[([0-9]+)b\]|[<:]\s*[a-z]+([0-9]+)", token)
        self.bits = int(found[1] or found[2]) if found else 8
        swizzled = re.search(r"S<([0-9]+),([0-9]+),(-?[0-9]+)>", token)
        self.swizzle = Swizzle(*map(int, swizzled.groups())) if swizzled else None

    def tensor(self, layout: Any) -> Any:
        """Return the layout of a tensor in memory, swizzled if the pointer is."""
        if self.swizzle is None or not self.swizzle.bits:
            return layout
        return ComposedLayout(self.of_elements(self.swizzle), 0, layout)

    def of_elements(self, outer: Any) -> Any:
        """Turn a swizzle of bytes into one of elements; return anything else unchanged."""
        if not isinstance(outer, Swizzle):
            return outer
        base = outer.base + 3 - (self.bits.bit_length() - 1)
        if self.bits not in (1, 2, 4, 8, 16, 32, 64, 128) or (base < 0 and outer.bits):
            raise LayoutValueError(f"parse: {outer} splits elements of {self.bits} bits")
        return Swizzle(outer.bits, max(base, 0), outer.shift)
