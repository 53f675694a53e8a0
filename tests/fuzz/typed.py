"""Text that someone might type: notation and expressions with their meaning, some damaged."""

from __future__ import annotations

import operator
from collections.abc import Callable
from random import Random
from typing import Any, NamedTuple

import layoutconv.algebra as lc
from layoutconv.algebra import ComposedLayout, E, Layout, LayoutError, Swizzle
from layoutconv.algebra.stride import F2, ScaledBasis

EXTENTS = (1, 2, 2, 3, 4, 4, 6, 8, 16)
STRIDES = (0, 1, 1, 2, 3, 4, 8, 16, 64, -1, -4)
NAMES = ("H", "W", "_w2", "f", "of", "complement", "make", "N")
ARITHMETIC: dict[str, Callable[[Any, Any], Any]] = {
    "+": operator.add, "-": operator.sub, "*": operator.mul, "//": operator.floordiv,
    "%": operator.mod,
}  # fmt: skip


class Typed(NamedTuple):
    """A text and what it means: a value, or the error of the operation that has none."""

    text: str
    value: Any
    error: Exception | None = None


def notation(rng: Random) -> Typed:
    """A layout, a swizzle or a chain of functions, in the notation of the literature."""
    kind = rng.random()
    if kind < 0.7:
        return layout(rng)
    if kind < 0.8:
        return swizzle(rng)
    outer = [rng.choice((swizzle, layout))(rng) for _ in range(rng.randint(1, 3))]
    result = layout(rng)
    for function in outer:
        offset = integer(rng, rng.choice(STRIDES))
        if rng.random() < 0.3:
            offset = tree(rng, _profile(rng, 2), lambda: integer(rng, rng.choice(STRIDES)))
        circle = rng.choice([" o ", " O ", " ∘ "])
        if offset.value == 0 and len(outer) == 1 and rng.random() < 0.5:
            text = f"{function.text}{circle}{result.text}"
        else:
            text = f"{function.text}{circle}{offset.text}{circle}{result.text}"
        result = Typed(text, ComposedLayout(function.value, offset.value, result.value))
    return result


def swizzle(rng: Random) -> Typed:
    """A swizzle."""
    bits = rng.randint(0, 4)
    value = Swizzle(bits, rng.randint(0, 5), rng.choice((1, -1)) * rng.randint(bits, 5))
    name = rng.choice(("S", "Sw", "SW"))
    numbers = [integer(rng, n).text for n in (value.bits, value.base, value.shift)]
    return Typed(f"{name}<{(_blank(rng) + ',').join(numbers)}>", value)


def layout(rng: Random) -> Typed:
    """A layout, perhaps a shape alone; its strides are all of one kind."""
    profile = _profile(rng, 3)
    extent = rng.choice(
        (lambda: rng.choice(EXTENTS), lambda: rng.randint(1, 10 ** rng.choice((3, 18))))
    )
    shape = tree(rng, profile, lambda: integer(rng, extent()))
    if rng.random() < 0.15:
        return Typed(shape.text, Layout(shape.value))
    leaf = rng.choice((_plain, _plain, _big, _basis, _sum, _f2, _f2_basis, _named, _named_basis))
    stride = tree(rng, profile, lambda: leaf(rng))
    if rng.random() < 0.1:
        named = rng.choice(("cute.make_layout({}, stride={})", "make_layout(shape={},stride ={})"))
        return Typed(named.format(shape.text, stride.text), Layout(shape.value, stride.value))
    colon = f"{_blank(rng)}:{_blank(rng)}"
    return Typed(f"{shape.text}{colon}{stride.text}", Layout(shape.value, stride.value))


def tree(rng: Random, profile: Any, leaf: Callable[[], Typed]) -> Typed:
    """A tuple of this profile, with what ``leaf`` gives where it has None."""
    if profile is None:
        return leaf()
    parts = [tree(rng, part, leaf) for part in profile]
    text = f",{_blank(rng)}".join(part.text for part in parts)
    comma = "," if parts and rng.random() < 0.1 else ""
    return Typed(f"({_blank(rng)}{text}{comma})", tuple(part.value for part in parts))


def integer(rng: Random, value: int) -> Typed:
    """An integer, now and then with CuTe's underscore or a zero before it."""
    dressed = rng.random()
    sign = "-" if value < 0 else ""
    zeros = "00" if dressed > 0.98 else ""
    return Typed(f"{'_' if dressed < 0.05 else ''}{sign}{zeros}{abs(value)}", value)


def _plain(rng: Random) -> Typed:
    return integer(rng, rng.choice(STRIDES))


def _named(rng: Random, depth: int = 2) -> Typed:
    """An integer with names in it, computed as Python computes."""
    if depth == 0:
        name = rng.choice(NAMES)
        return Typed(name, lc.symbols(name))
    left = _named(rng, depth - 1)
    right = rng.choice((lambda: _named(rng, depth - 1), lambda: integer(rng, rng.randint(1, 9))))()
    sign, way = rng.choice(tuple(ARITHMETIC.items()))
    if type(right.value) is int and right.value == 0:
        right = integer(rng, 7)  # nothing is divided by zero
    texts = (f"({_blank(rng)}{part.text}{_blank(rng)})" for part in (left, right))
    text = f"{_blank(rng)}{sign}{_blank(rng)}".join(texts)
    return Typed(text, way(left.value, right.value))


def _named_basis(rng: Random) -> Typed:
    value, mode = _named(rng), rng.randint(0, 4)
    return Typed(f"({value.text})@{mode}", value.value * E(mode))


def _big(rng: Random) -> Typed:
    return integer(rng, rng.randint(-(1 << 62), 1 << 62))


def _basis(rng: Random) -> Typed:
    value, path = rng.choice(STRIDES) or 1, [rng.randint(0, 4) for _ in range(rng.randint(1, 3))]
    return Typed(f"{value}@" + "@".join(map(str, reversed(path))), value * E(*path))


def _sum(rng: Random) -> Typed:
    # Of one basis for each mode, so that the sum has the value that the text says.
    modes = sorted(rng.sample(range(5), rng.randint(1, 3)))
    values = [rng.choice(STRIDES) or 1 for _ in modes]
    total: Any = values[0] * E(modes[0])
    for value, mode in zip(values[1:], modes[1:], strict=True):
        total = total + value * E(mode)
    return Typed("+".join(f"{v}@{m}" for v, m in zip(values, modes, strict=True)), total)


def _f2(rng: Random) -> Typed:
    value = rng.randint(0, 1 << rng.choice((3, 10, 60)))
    return Typed(f"f{value}", F2(value))


def _f2_basis(rng: Random) -> Typed:
    factor, mode = _f2(rng), rng.randint(0, 4)
    return Typed(f"{factor.text}@{mode}", ScaledBasis(factor.value, (mode,)))


def _profile(rng: Random, depth: int) -> Any:
    if depth == 0 or rng.random() < 0.45:
        return None
    return tuple(_profile(rng, depth - 1) for _ in range(rng.choice((0, 1, 2, 2, 2, 3, 4))))


def _blank(rng: Random) -> str:
    return rng.choice(("", "", "", " ", "\t", "\n", "\u00a0")) if rng.random() < 0.3 else ""


# What an operation is given here: a layout (l), a tiler (t), a shape (s), a positive integer (n), a
# mode (m), a size of an element in bits (b).
CALLS = {
    "composition": "lt", "complement": "l", "logical_divide": "lt", "zipped_divide": "lt",
    "tiled_divide": "lt", "flat_divide": "lt", "logical_product": "lt", "zipped_product": "lt",
    "tiled_product": "lt", "flat_product": "lt", "blocked_product": "ll", "raked_product": "ll",
    "tile_to_shape": "ls", "coalesce": "l", "filter": "l", "flatten_layout": "l",
    "group_modes": "lmm", "right_inverse": "l", "left_inverse": "l", "nullspace": "l",
    "max_common_layout": "ll", "make_identity_layout": "s", "make_layout_like": "l",
    "make_layout": "ll", "layout_add": "ll", "upcast": "ln", "downcast": "ln", "recast": "lbb",
    "Layout": "s", "make_ordered_layout": "ss", "Swizzle": "nnn",
}  # fmt: skip


def expression(rng: Random, depth: int = 2) -> Typed:
    """An operation on operands, with what the call of the function gives."""
    if depth == 0 or rng.random() < 0.25:
        return small_layout(rng)
    if rng.random() < 0.25:
        return _applied("composition", [expression(rng, depth - 1) for _ in "ab"], " @ ")
    name = rng.choice(list(CALLS))
    make: dict[str, Callable[[], Typed]] = {
        "l": lambda: expression(rng, depth - 1),
        "t": lambda: _tiler(rng),
        "s": lambda: tree(rng, _profile(rng, 1), lambda: integer(rng, rng.choice(EXTENTS))),
        "n": lambda: integer(rng, rng.choice((1, 2, 3, 4, 8))),
        "m": lambda: integer(rng, rng.randint(0, 3)),
        "b": lambda: integer(rng, rng.choice((8, 16, 32))),
    }
    return _applied(name, [make[kind]() for kind in CALLS[name]], ", ")


def small_layout(rng: Random) -> Typed:
    """A layout of integers, of at most 256 coordinates."""
    rank = rng.randint(1, 3)
    shape = tuple(rng.choice((1, 2, 3, 4, 6)) for _ in range(rank))
    stride = tuple(rng.choice((0, 1, 1, 2, 3, 4, 6, 8, 12, -1)) for _ in range(rank))
    value = Layout(shape, stride) if rng.random() < 0.8 else Layout(shape)
    return Typed(str(value), value)


def _tiler(rng: Random) -> Typed:
    kind = rng.random()
    if kind < 0.3:
        return small_layout(rng)
    if kind < 0.5:
        return integer(rng, rng.choice(EXTENTS))
    parts = [
        _tiler(rng) if rng.random() < 0.6 else Typed("_", None) for _ in range(rng.randint(1, 3))
    ]
    return Typed(f"({','.join(part.text for part in parts)},)", tuple(part.value for part in parts))


def _applied(name: str, operands: list[Typed], between: str) -> Typed:
    """The call of an operation; the first operand without a value is the error of all."""
    text = between.join(operand.text for operand in operands)
    if between == ", ":
        text = f"{name}({text})"
    elif " @ " in operands[1].text:
        text = f"{operands[0].text} @ ({operands[1].text})"
    for operand in operands:
        if operand.error is not None:
            return Typed(text, None, operand.error)
    values = [operand.value for operand in operands]
    try:
        if name == "composition" and isinstance(values[0], Swizzle) and type(values[1]) is tuple:
            values[1] = Layout(values[1])  # a swizzle has no modes, so that a tuple is a shape
        return Typed(text, getattr(lc, name)(*values))
    except LayoutError as error:
        return Typed(text, None, error)
    except (TypeError, ValueError, AttributeError, IndexError) as error:
        return Typed(text, None, LayoutError(str(error)))


def heavy(rng: Random) -> str:
    """An operation on layouts of many modes and coordinates, which may take for ever."""

    def large() -> str:
        rank, top = rng.randint(1, 8), 10 ** rng.choice((1, 2, 4, 6, 9))
        extents = [str(rng.randint(1, top)) for _ in range(rank)]
        strides = [str(rng.randint(0, top)) for _ in range(rank)]
        return f"({','.join(extents)}):({','.join(strides)})"

    name = rng.choice(list(CALLS))
    made = {"l": large, "t": large, "s": lambda: large().split(":")[0]}
    operands = [made.get(kind, lambda: str(rng.randint(0, 64)))() for kind in CALLS[name]]
    return f"{name}({', '.join(operands)})"


ALPHABET = (
    *"0123456789", *"(((()))),,,,:::<>", *"@@@+-_foOS∘ \t\n", *"²٣１𝟙",
    *"\0\x1b\x7f\u202e\ud800é漢", *"[]{}.*/\\'\"=&;#%", "**", "__class__", "None", "H", "W", "//",
    "<script>alert(1)</script>", "999999999999",
    "o 0 o ", "complement", "coalesce(", "left_inverse(", " @ ", "1@99", "S<", "lambda", "\ufeff",
)  # fmt: skip


def damaged(rng: Random, text: str) -> str:
    """A text with one to four pieces deleted, inserted, replaced, repeated or swapped."""
    for _ in range(rng.choice((1, 1, 1, 2, 4))):
        at = rng.randint(0, len(text))
        end = min(len(text), at + rng.choice((0, 1, 1, 2, 5, 20)))
        how = rng.random()
        if how < 0.25:
            text = text[:at] + text[end:]
        elif how < 0.6:
            text = text[:at] + rng.choice(ALPHABET) + text[at:]
        elif how < 0.8:
            text = text[:at] + rng.choice(ALPHABET) + text[end:]
        elif how < 0.9:
            text = text[:at] + text[at:end] * rng.choice((2, 3, 10)) + text[end:]
        else:
            other = rng.randint(0, len(text))
            text = text[:at] + text[other : other + end - at] + text[end:]
    return text


def hostile(rng: Random) -> str:
    """A text to break a parser: too deep, too long, too large, of strange characters."""
    n = rng.choice((1, 2, 63, 64, 65, 99, 100, 101, 499, 1999, 3999, 20_000))
    piece = rng.choice(
        (*ALPHABET, "(4,", "4,", "S<1,", "4 o ", "4:", "1@63", "1@0+", "4 @ ", "coalesce(")
    )
    return rng.choice((
        lambda: piece * n,
        lambda: "(" * n + "4" + ")" * n,
        lambda: "(" * n + "4:1" + ")" * (n - 1),
        lambda: "(" + "4," * n + ")",
        lambda: f"4:{'9' * n}",
        lambda: f"{'9' * n}",
        lambda: f"1:1@{'9' * n}",
        lambda: "4:1" + "@3" * n,
        lambda: "4:" + "+".join(["1@9"] * n),
        lambda: " o ".join(["4:1"] * n),
        lambda: f"S<{n},{n},{n}>",
        lambda: f"S<0,{'9' * n},0>",
        lambda: f"4:f{'9' * n}",
        lambda: "4:1" + " " * n + "x",
        lambda: "(" * n + piece + ")" * n + ":" + "(" * n + "1" + ")" * n,
        lambda: "".join(rng.choice(ALPHABET) for _ in range(min(n, 300))),
        lambda: "coalesce(" * n + "4" + ")" * n,
        lambda: " @ ".join(["4"] * n),
    ))()  # fmt: skip
