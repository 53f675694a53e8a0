"""The general decision of a composition: the two questions of :mod:`.carry`, with proofs."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

from .basis import ScaledBasis, basis_terms
from .budget import Budget
from .carry import Carry, LeafModes, Step, carries_of, clash, split
from .errors import LayoutTypeError, LayoutValueError, inexact, text
from .int_tuple import IntTuple, unflatten
from .layout import Layout, make
from .normal import normal_form
from .packing import Packing, Path


class Function:
    """``a`` as integer functions of the components of b's values, with packed strides."""

    def __init__(self, a: Layout, b: Layout) -> None:
        self.paths = _paths(b)
        modes = [mode_at(a, path) for path in self.paths]
        reach = 1 + sum((s - 1) * abs(int(v)) for s, d in b._leaves for v in self.step(d))
        bound = 4 * reach * (1 + sum(int(s) for s, _ in a._leaves)) * (1 + len(a._leaves))
        self.packing = Packing([d for _, d in a._leaves], bound)
        self.forms = [
            [(int(s), self.packing.pack(d)) for s, d in normal_form(mode)] for mode in modes
        ]
        self.carries: list[Carry] = [
            carry for i, form in enumerate(self.forms) for carry in carries_of(form, i)
        ]

    def step(self, d: Any) -> Step:
        """Return the components of a stride of b."""
        if self.paths == [()]:
            return (int(d),)
        values = {term.path: int(term.value) for term in basis_terms(d)}
        return tuple([values.get(path, 0) for path in self.paths])

    def stride(self, step: Step) -> Any:
        """Return ``a`` at a step of b: the stride that the result must have."""
        total = 0
        for form, n in zip(self.forms, step, strict=True):
            for extent, stride in form[:-1]:
                total += n % extent * stride
                n //= extent
            if form:
                total += n * form[-1][1]
        return self.packing.unpack(total)


def mode_at(a: Layout, path: Path) -> Layout:
    """Return the mode of ``a`` at a scaled basis of b; an integer shape is its own mode 0."""
    mode = a
    for index in path:
        if not isinstance(mode.shape, tuple) or index >= len(mode.shape):
            raise LayoutValueError(
                f"composition: the scaled basis {ScaledBasis(1, path)} of the right-hand side "
                f"leads to no mode of {a}"
            )
        mode = mode[index]
    return mode


def _paths(b: Layout) -> list[Path]:
    """Return the modes of a that b's values reach; ``[()]`` if its values are integers."""
    kinds = {isinstance(d, int) for _, d in b._leaves if not (isinstance(d, int) and d == 0)}
    if len(kinds) > 1:
        raise LayoutTypeError(f"composition: {b} mixes integers and scaled bases")
    paths = sorted({term.path for _, d in b._leaves for term in basis_terms(d)})
    for shorter, longer in pairwise(paths):
        if longer[: len(shorter)] == shorter:
            raise LayoutTypeError(f"composition: {b} takes mode {shorter} as integer and as tuple")
    return paths or [()]


def decided(a: Layout, b: Layout, operation: str, operands: tuple[Any, ...]) -> Layout:
    """Compose layouts of integers in general; raise with a proof if no layout is the result."""
    budget = Budget(operation, operands)
    function = Function(a, b)
    leaves = [(int(s), function.step(d)) for s, d in b._leaves]
    splits = [
        split(function.carries, step, extent, budget)
        if any(step)
        else LeafModes([(extent, step)], None)
        for extent, step in leaves
    ]
    best = _assembled(function, splits, b.shape)
    for i, part in enumerate(splits):
        if part.broken_at is not None:
            x = [part.broken_at if j == i else 0 for j in range(len(splits))]
            s, d = b._leaves[i]
            why = f"the mode {s}:{d} crosses a mode boundary at {part.broken_at}"
            _refuse(operation, operands, (a, b, best), x, why)
    modes = [mode for part in splits for mode in part.modes]
    digits = clash(function.carries, modes, budget)
    if digits is not None:
        x = _joined(splits, digits)
        why = "the modes of the right-hand side carry into each other"
        _refuse(operation, operands, (a, b, best), x, why)
    return best


def _assembled(function: Function, splits: list[LeafModes], shape: IntTuple) -> Layout:
    shapes, strides = [], []
    for part in splits:
        s = tuple([extent for extent, _ in part.modes])
        d = tuple([function.stride(step) for _, step in part.modes])
        shapes.append(s if len(s) > 1 else s[0])
        strides.append(d if len(d) > 1 else d[0])
    return make(unflatten(iter(shapes), shape), unflatten(iter(strides), shape))


def _joined(splits: list[LeafModes], digits: list[int]) -> list[int]:
    """Join coordinates of the modes of all leaves to coordinates of the leaves."""
    result, at = [], iter(digits)
    for part in splits:
        x, place = 0, 1
        for extent, _ in part.modes:
            x += next(at) * place
            place *= extent
        result.append(x)
    return result


def _refuse(
    operation: str,
    operands: tuple[Any, ...],
    layouts: tuple[Layout, Layout, Layout],
    x: list[int],
    why: str,
) -> None:
    a, b, best = layouts
    witness = unflatten(iter(x), b.shape)
    exact = a(b(witness))
    inexact(
        operation,
        operands,
        f"{why}: at {text(witness)} the function is {exact}, "
        f"but the sum over modes is {best(witness)}",
        witness=witness,
        exact=exact,
        best=best,
    )
