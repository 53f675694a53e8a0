"""Give modes that add as integers, some of them by XOR inside, strides of one kind.

A layout of integers that is divided or repeated by an XOR layout has such modes. They become
integers if nothing in them carries, or all become XOR strides if no two modes share a bit.
"""

from __future__ import annotations

from typing import Any

from .basis import ScaledBasis, basis_terms, sum_of_bases
from .errors import LayoutTypeError
from .f2 import as_f2
from .f2_linear import bit_columns, is_carry_free
from .int_tuple import unflatten
from .layout import Layout, make, make_layout
from .normal import Arithmetic, arithmetic, simplified
from .protocol import Path, is_zero, xor
from .xor import F2

Term = tuple[int, Any, Any]  # the index of a leaf in its mode, its extent and its value


def added(name: str, modes: list[Layout]) -> list[Layout]:
    """Return the modes of one layout, with strides that add like the values of these modes.

    Raises :class:`LayoutTypeError` if XOR strides share bits with another mode and carry.

    >>> from layoutconv.algebra import F2
    >>> print(*added("composition", [Layout((2, 2), (F2(1), F2(2))), Layout(4, 2)]))
    (2,2):(1,2) 4:2
    >>> print(*added("composition", [Layout((2, 2), (F2(1), F2(3))), Layout(4, 4)]))
    (2,2):(f1,f3) 4:f4
    """
    if all(mode._plain for mode in modes):
        return modes
    found = [_terms(mode) for mode in modes]
    _expect_one_codomain(name, modes, found)
    if not any(xor(v) for terms in found for on in terms.values() for _, _, v in on):
        return modes
    for path in dict.fromkeys(path for terms in found for path in terms):
        on_path = [terms.get(path, []) for terms in found]
        converted = _converted(on_path)
        if converted is None:
            raise LayoutTypeError(
                f"{name}: the modes {', '.join(map(str, modes))} add with carries"
            )
        for terms, new in zip(found, converted, strict=True):
            terms[path] = new
    return [_rebuilt(mode, terms) for mode, terms in zip(modes, found, strict=True)]


def expect_one_codomain(name: str, modes: list[Layout]) -> None:
    """Refuse modes of one layout if some give integers and others coordinates.

    >>> from layoutconv.algebra import E
    >>> expect_one_codomain("logical_product", [Layout(4, E(0)), Layout(3, 1)])
    Traceback (most recent call last):
        ...
    layoutconv.algebra.errors.LayoutTypeError: logical_product: the modes 4:1@0, 3:1 add integers \
to coordinates
    """
    _expect_one_codomain(name, modes, [_terms(mode) for mode in modes])


def _expect_one_codomain(
    name: str, modes: list[Layout], found: list[dict[Path, list[Term]]]
) -> None:
    coordinates = any(path for terms in found for path in terms)
    if coordinates and any(s != 1 for terms in found for _, s, _ in terms.get((), [])):
        raise LayoutTypeError(
            f"{name}: the modes {', '.join(map(str, modes))} add integers to coordinates"
        )


def in_one_kind(name: str, layout: Any) -> Any:
    """Return a layout that was made mode by mode, with strides that add like its modes' values."""
    if not isinstance(layout, Layout) or layout._plain:
        return layout
    return make_layout(added(name, list(layout)))


def by_xor(name: str, layout: Layout) -> Layout:
    """Return a layout whose modes add by XOR, with its integer strides turned into XOR strides.

    Raises :class:`LayoutTypeError` if the integers of a mode carry.

    >>> from layoutconv.algebra import F2
    >>> print(by_xor("logical_product", Layout((2, (3, 2)), (F2(5), (1, 8)))))
    (2,(3,2)):(f5,(f1,f8))
    """
    kind = arithmetic(layout)
    if kind is Arithmetic.XOR:
        return layout
    if kind is Arithmetic.OPAQUE and isinstance(layout.shape, tuple):
        return make_layout([by_xor(name, mode) for mode in layout])
    if kind is not Arithmetic.INTEGER or bit_columns(simplified(layout)) is None:
        raise LayoutTypeError(
            f"{name}: the mode {layout} adds with carries, but the others add by XOR"
        )
    return as_f2(simplified(layout))


def _terms(mode: Layout) -> dict[Path, list[Term]]:
    """Return the terms of all strides by path; unknown strides have no terms."""
    found: dict[Path, list[Term]] = {}
    for i, (s, d) in enumerate(mode._leaves):
        parts = basis_terms(d) if isinstance(d, ScaledBasis | tuple) else [ScaledBasis(d, ())]
        for part in parts:
            if not is_zero(part.value):
                found.setdefault(part.path, []).append((i, s, part.value))
    return found


def _converted(modes: list[list[Term]]) -> list[list[Term]] | None:
    """Convert the terms of one path, in every mode, to integers or XOR; None if neither works."""
    by_xor = [any(xor(v) for _, _, v in terms) for terms in modes]
    if not any(by_xor) or sum(bool(terms) for terms in modes) == 1:
        return modes
    masks = [_mask(terms) for terms in modes]
    known = [mask for mask in masks if mask is not None]
    apart = len(known) == len(masks) and sum(known) == _union(known)
    if apart and all(kind or not terms for kind, terms in zip(by_xor, modes, strict=True)):
        return modes
    free = [_is_free(terms) for terms in modes]
    if all(f for f, kind in zip(free, by_xor, strict=True) if kind):
        return [[(i, s, _integer(v)) for i, s, v in terms] for terms in modes]
    if apart and all(f for f, kind in zip(free, by_xor, strict=True) if not kind):
        return [[(i, s, v if xor(v) else F2(v)) for i, s, v in terms] for terms in modes]
    return None


def _integer(v: Any) -> Any:
    column = xor(v)
    return v if column is None else column


def _mask(terms: list[Term]) -> int | None:
    """Return the bits that the terms reach by XOR; None if some are not known integers."""
    mask = 0
    for _, s, v in terms:
        column = _integer(v)
        if not (type(s) is int and type(column) is int and column > 0):
            return None
        for k in range((s - 1).bit_length()):
            mask |= column << k
    return mask


def _is_free(terms: list[Term]) -> bool:
    """Tell if the values of terms are equal by XOR and in integers."""
    taken = 0
    for term in terms:
        mask = _mask([term])
        if mask is None or mask & taken or not is_carry_free(_integer(term[2]), term[1]):
            return False
        taken |= mask
    return True


def _union(masks: list[int]) -> int:
    union = 0
    for mask in masks:
        union |= mask
    return union


def _rebuilt(mode: Layout, found: dict[Path, list[Term]]) -> Layout:
    """Return the mode with these terms; a stride without terms stays."""
    parts: dict[int, list[ScaledBasis]] = {}
    for path, terms in found.items():
        for i, _, v in terms:
            parts.setdefault(i, []).append(ScaledBasis(v, path))
    strides = []
    for i, (_, d) in enumerate(mode._leaves):
        of_leaf = parts.get(i, [])
        plain = len(of_leaf) == 1 and not of_leaf[0].path
        new = of_leaf[0].value if plain else sum_of_bases(of_leaf)
        strides.append(new if of_leaf else 0 if xor(d) == 0 else d)
    return make(mode.shape, unflatten(iter(strides), mode.shape))
