"""Programs of dense networks: steps on numbered values, and the shapes that come of them.

A step is ``(operation, operands, options)`` of plain tuples. Value 0 goes in, step ``i`` makes
value ``i + 1``, and the last value comes out. ``OPTIONS`` has the operations and the defaults of
options.
"""

from __future__ import annotations

from math import prod
from typing import Any, NamedTuple

Step = tuple[str, tuple[int, ...], tuple[tuple[str, Any], ...]]
Program = tuple[Step, ...]
Cells = tuple[int, ...]

OPTIONS: dict[str, dict[str, Any]] = {
    "conv": {"K": 1, "taps": (), "stride": (), "dilation": (), "padding": (), "groups": 1,
             "bias": True, "mode": "zeros", "weight_norm": False},
    "transposed": {"K": 1, "taps": (), "stride": (), "dilation": (), "padding": (), "groups": 1,
                   "bias": True, "output_padding": ()},
    "norm": {"kind": "batch", "groups": 1, "affine": True, "tracks": True, "momentum": 0.1},
    "act": {"kind": "relu", "form": "module"},
    "add": {"form": "operator"},
    "mul": {},
    "cat": {},
    "pool": {"kind": "max", "taps": (), "stride": (), "padding": (), "ceil": False},
    "squeeze": {},
    "up": {"mode": "nearest"},
    "like": {"mode": "nearest"},  # a value resized to the cells of another
    "slice": {"begin": 0, "end": 1},
    "same": {"kind": "identity"},
    "shared": {"at": 0},  # the module of an earlier step once more
    "scale": {"by": 1.0},
    "head": {"K": 1},
}  # fmt: skip
MODULES = "conv", "transposed", "norm", "pool", "squeeze", "up", "same"
FRESH = "conv", "transposed", "norm", "add", "cat"  # results that autograd does not keep
INPLACE = "module inplace", "function inplace", "method inplace", "+="


class Shape(NamedTuple):
    """Channels, and the cells of each size that is put in."""

    C: int
    cells: tuple[Cells, ...]


def step(op: str, of: tuple[int, ...], **options: Any) -> Step:
    """A step with what differs from the defaults.

    >>> step("act", (3,), kind="silu", form="module")
    ('act', (3,), (('kind', 'silu'),))
    """
    plain = OPTIONS[op]
    given = {name: value for name, value in options.items() if value != plain[name]}
    return op, of, tuple(sorted(given.items()))


def options_of(one: Step) -> dict[str, Any]:
    """All options of a step."""
    return OPTIONS[one[0]] | dict(one[2])


def has_module(one: Step) -> bool:
    """Return whether a step calls a module of its own."""
    return one[0] in MODULES or (one[0] == "act" and options_of(one)["form"].startswith("module"))


def shapes_of(program: Program, first: Shape, images: int) -> list[Shape] | None:
    """The shape of every value; None where a step takes no such values."""
    shapes = [first]
    for number, one in enumerate(program):
        if any(of > number for of in one[1]) or not _may_write(program, number):
            return None
        shape = _shape(program, one, shapes, images)
        if shape is None or shape.C < 1 or any(min(cells) < 1 for cells in shape.cells):
            return None
        shapes.append(shape)
    return shapes


def writes(one: Step) -> bool:
    """Return whether a step writes to its first operand."""
    return options_of(one).get("form") in INPLACE


def _may_write(program: Program, number: int) -> bool:
    """A step may write to what is kept for no gradient: a fresh result that nobody has read."""
    one = program[number]
    called = _shared_by(program, one)
    if not writes(one) and not (called and writes(called)):
        return True
    target = one[1][0]
    if one[0] == "add" and one[1][0] == one[1][1]:
        return False
    if target == 0 or program[target - 1][0] not in FRESH:
        return False
    if any(target in other[1] for other in program[:number]):
        return False
    return not any(_is_read(program[:number], value) for value in _same_memory(program, target))


def _same_memory(program: Program, value: int) -> list[int]:
    """A value, and those that sums in place have made it of."""
    found = [value]
    while found[-1] > 0 and writes(program[found[-1] - 1]):
        found.append(program[found[-1] - 1][1][0])
    return found


def _is_read(program: Program, value: int) -> bool:
    """Return whether a step reads a value, and does not write its own result there."""
    return any(value in one[1] and not (writes(one) and one[1][0] == value) for one in program)


def _shared_by(program: Program, one: Step) -> Step | None:
    """The step whose module another calls once more."""
    at = options_of(one).get("at", len(program))
    return program[at] if at < len(program) else None


def _shape(program: Program, one: Step, shapes: list[Shape], images: int) -> Shape | None:
    op, options = one[0], options_of(one)
    of = [shapes[value] for value in one[1]]
    x = of[0]
    if op == "shared":
        other = _shared_by(program, one)
        if other is None or not has_module(other) or options["at"] + 1 >= len(shapes):
            return None
        if shapes[other[1][0]].C != x.C:
            return None
        return _own_shape(other[0], options_of(other), x, images)
    if op in ("add", "mul"):
        return _joined(x, of[1]) if op == "mul" else (x if x == of[1] else None)
    if op == "cat":
        if any(other.cells != x.cells for other in of):
            return None
        return Shape(sum(other.C for other in of), x.cells)
    if op == "like":
        return Shape(x.C, of[1].cells)
    return _own_shape(op, options, x, images)


def _joined(x: Shape, y: Shape) -> Shape | None:
    """The shape of a product with a gate, which has one cell."""
    gate = all(prod(cells) == 1 for cells in y.cells)
    return x if x == y or (x.C == y.C and gate) else None


def _own_shape(op: str, options: dict[str, Any], x: Shape, images: int) -> Shape | None:
    """The shape of a result of one operand."""
    if op in ("conv", "transposed"):
        if x.C % options["groups"] or options["K"] % options["groups"]:
            return None
        cells = tuple(_windows(op, options, c) for c in x.cells)
        return None if None in cells else Shape(options["K"], cells)  # type: ignore[arg-type]
    if op == "pool":
        cells = tuple(_pooled(options, c) for c in x.cells)
        return None if None in cells else Shape(x.C, cells)  # type: ignore[arg-type]
    if op == "squeeze":
        return Shape(x.C, tuple((1,) * len(c) for c in x.cells))
    if op == "up":
        return Shape(x.C, tuple(tuple(2 * e for e in c) for c in x.cells))
    if op == "slice":
        inside = 0 <= options["begin"] < options["end"] <= x.C
        return Shape(options["end"] - options["begin"], x.cells) if inside else None
    if op == "head":
        return Shape(options["K"], tuple((1,) for _ in x.cells))
    if op == "norm":
        least = min(prod(c) for c in x.cells)
        few = images * least if options["kind"] == "batch" else least
        if few < 4 or (options["kind"] == "group" and x.C % options["groups"]):
            return None
    return x


def _windows(op: str, options: dict[str, Any], cells: Cells) -> Cells | None:
    found = []
    names = ("taps", "stride", "dilation", "padding")
    for mode, extent in enumerate(cells):
        t, s, d, p = (options[name][mode] for name in names)
        span = d * (t - 1) + 1
        if op == "transposed":
            if options["output_padding"][mode] >= max(s, d):
                return None
            found.append((extent - 1) * s - 2 * p + span + options["output_padding"][mode])
            continue
        if extent + 2 * p < span or (options["mode"] in ("reflect", "circular") and p >= extent):
            return None
        found.append((extent + 2 * p - span) // s + 1)
    return tuple(found)


def _pooled(options: dict[str, Any], cells: Cells) -> Cells | None:
    found = []
    for mode, extent in enumerate(cells):
        t, s, p = (options[name][mode] for name in ("taps", "stride", "padding"))
        if extent < t or 2 * p > t:
            return None
        rest = extent + 2 * p - t
        count = rest // s + 1
        if options["ceil"] and rest % s and count * s < extent + p:
            count += 1
        found.append(count)
    return tuple(found)
