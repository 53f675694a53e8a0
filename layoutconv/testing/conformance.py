"""The conformance suite: random cases of each operation, on this library or another.

A library is a module with a class ``Layout(shape, stride)`` and functions with CuTe's names. Each
result is checked by the definition. Each refusal is compared with this library, which refuses only
if no result exists. Half of the cases have operands with a result by construction, the other half
any operands.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import suppress
from importlib import import_module
from typing import Any, NamedTuple

from .. import algebra
from ..algebra import Layout, LayoutError, LayoutTypeError, LayoutValueError
from ..algebra.errors import wrong_argument
from . import checks, checks_modes, checks_tiles
from .admissible import ADMISSIBLE
from .compare import WrongResultError, expect_count
from .random_layouts import random_layout

_REFUSALS = (AssertionError, ValueError, TypeError, NotImplementedError)
_MALFORMED = (WrongResultError, AttributeError, IndexError, LayoutError, TypeError, ValueError)


class Operation(NamedTuple):
    """An operation: its names, ours first, its check, and a maker of random operands.

    ``anything`` makes operands that may have no result; None if all operands have one.

    >>> OPERATIONS["composition"].names
    ('composition', 'compose')
    """

    names: tuple[str, ...]
    check: Callable[..., None]
    anything: Callable[[random.Random], tuple[Any, ...]] | None = None


def _anything(layouts: int, *, bound: bool = False) -> Callable[[random.Random], tuple[Any, ...]]:
    def operands(rng: random.Random) -> tuple[Any, ...]:
        made: list[Any] = [random_layout(rng, 3, nested=True)]
        made += [random_layout(rng, 2) for _ in range(layouts - 1)]
        return (*made, *([rng.randint(1, 60)] if bound else []))

    return operands


_ONE, _TWO = _anything(1), _anything(2)
OPERATIONS = {
    "coalesce": Operation(("coalesce",), checks_modes.check_coalesce),
    "coalesce_x": Operation(("coalesce_x", "coalesce_z"), checks_modes.check_coalesce_x),
    "filter": Operation(("filter",), checks_modes.check_filter),
    "filter_zeros": Operation(("filter_zeros",), checks_modes.check_filter_zeros),
    "flatten": Operation(("flatten_layout", "flatten"), checks_modes.check_flatten),
    "group_modes": Operation(("group_modes", "group"), checks_modes.check_group_modes),
    "with_shape": Operation(("with_shape",), checks_modes.check_with_shape),
    "slice_": Operation(("slice_",), checks_modes.check_slice),
    "slice_and_offset": Operation(("slice_and_offset",), checks_modes.check_slice_and_offset),
    "composition": Operation(("composition", "compose"), checks.check_composition, _TWO),
    "composition by mode": Operation(("composition", "compose"), checks.check_composition),
    "complement": Operation(("complement",), checks.check_complement, _anything(1, bound=True)),
    "logical_divide": Operation(("logical_divide",), checks_tiles.check_logical_divide, _TWO),
    "logical_divide by mode": Operation(("logical_divide",), checks_tiles.check_logical_divide),
    "zipped_divide": Operation(("zipped_divide",), checks_tiles.check_zipped_divide),
    "tiled_divide": Operation(("tiled_divide",), checks_tiles.check_tiled_divide),
    "flat_divide": Operation(("flat_divide",), checks_tiles.check_flat_divide),
    "logical_product": Operation(("logical_product",), checks_tiles.check_logical_product, _TWO),
    "zipped_product": Operation(("zipped_product",), checks_tiles.check_zipped_product, _TWO),
    "tiled_product": Operation(("tiled_product",), checks_tiles.check_tiled_product, _TWO),
    "flat_product": Operation(("flat_product",), checks_tiles.check_flat_product, _TWO),
    "blocked_product": Operation(("blocked_product",), checks_tiles.check_blocked_product, _TWO),
    "raked_product": Operation(("raked_product",), checks_tiles.check_raked_product, _TWO),
    "tile_to_shape": Operation(("tile_to_shape",), checks_tiles.check_tile_to_shape),
    "local_tile": Operation(("local_tile",), checks_tiles.check_local_tile),
    "local_partition": Operation(("local_partition",), checks_tiles.check_local_partition),
    "domain_offset": Operation(("domain_offset",), checks_tiles.check_domain_offset),
    "right_inverse": Operation(("right_inverse",), checks.check_right_inverse, _ONE),
    "left_inverse": Operation(("left_inverse",), checks.check_left_inverse, _ONE),
    "nullspace": Operation(("nullspace",), checks.check_nullspace),
    "max_common_layout": Operation(("max_common_layout",), checks.check_max_common_layout),
    "max_common_vector": Operation(("max_common_vector",), checks.check_max_common_vector),
    "layout_add": Operation(("layout_add",), checks_modes.check_layout_add, _TWO),
    "upcast": Operation(("upcast",), checks_modes.check_upcast),
    "downcast": Operation(("downcast",), checks_modes.check_downcast),
    "recast": Operation(("recast",), checks_modes.check_recast),
    "cosize": Operation(("cosize",), checks_modes.check_cosize),
    "is_injective": Operation(("is_injective",), checks_modes.check_is_injective),
    "is_surjective": Operation(("is_surjective",), checks_modes.check_is_surjective),
}


# Functions on tuples may share these names: the arguments before the tuple.
_BEFORE_TUPLES: dict[str, tuple[Any, ...]] = {"flatten": (), "slice_": ((None, 0),)}


class Outcome(NamedTuple):
    """Counts of a library's outcomes on the cases of an operation, and its first fault.

    >>> Outcome(exact=9, refused=0, wrong=1, over_refused=0, crashed=0, first="4:1 is 4:2").wrong
    1
    """

    exact: int
    refused: int
    wrong: int
    over_refused: int
    crashed: int
    first: str


def conformance(
    library: Any, cases: int = 2000, seed: int = 0, skip: Iterable[str] = ()
) -> dict[str, Outcome]:
    """Run random cases of each operation on a library, a module or its name; return the outcomes.

    Operations without a function in the library are left out (a function on tuples alone does not
    count), and so are those in ``skip``. Every other case has operands with a result by
    construction; for the rest the algebra of this package decides if there is one. Raises
    :class:`~layoutconv.LayoutTypeError` for a module without layouts or operations on them, and for
    less than one case; :class:`~layoutconv.LayoutValueError` for a name in ``skip`` that no
    operation has.

    >>> outcome = conformance("layoutconv", cases=20)["composition"]
    >>> outcome.exact + outcome.refused, outcome.wrong + outcome.over_refused + outcome.crashed
    (20, 0)
    """
    expect_count("conformance", "cases", cases)
    if isinstance(skip, str) or not isinstance(skip, Iterable):
        raise wrong_argument("conformance", "skip", "a sequence of names", skip)
    if library == "":
        raise wrong_argument("conformance", "library", "a module or its name", library)
    module = import_module(library) if isinstance(library, str) else library
    left_out = set(skip)
    if not left_out <= set(OPERATIONS):
        unknown = ", ".join(sorted(left_out - set(OPERATIONS)))
        raise LayoutValueError(f"conformance: no operation {unknown} to skip")
    found = {name: o for name, o in OPERATIONS.items() if _function(module, o) is not None}
    if not hasattr(module, "Layout") or not found:
        raise LayoutTypeError(f"conformance: {library} has no Layout, or no operation on layouts")
    return {
        name: _play(module, name, operation, cases, seed)
        for name, operation in found.items()
        if name not in left_out
    }


def _function(module: Any, operation: Operation) -> Any:
    found = [getattr(module, name) for name in operation.names if hasattr(module, name)]
    return next((f for f in found if not _is_of_tuples(module, operation, f)), None)


def _is_of_tuples(module: Any, operation: Operation, function: Any) -> bool:
    """Return whether a function works on tuples, and takes a layout for a leaf or refuses it."""
    before = _BEFORE_TUPLES.get(operation.names[-1])
    if before is None:
        return False
    with suppress(Exception):  # its cases will show these
        function(*before, (2, 3))
        try:
            return isinstance(function(*before, module.Layout((2, 3), (3, 1))), tuple)
        except _REFUSALS:
            return True
    return False


def operands_of(name: str, seed: int, case: int) -> tuple[Any, ...]:
    """Return the operands of a case; even cases of some operations may have no result.

    >>> operands_of("cosize", 0, 1) == operands_of("cosize", 0, 1)
    True
    """
    rng = random.Random(f"{name} {seed} {case}")
    anything = OPERATIONS[name].anything
    if anything is None or _is_admissible(name, case):
        return ADMISSIBLE[name](rng, "layout", "int")
    return anything(rng)


def _is_admissible(name: str, case: int) -> bool:
    return OPERATIONS[name].anything is None or case % 2 == 1


def _play(module: Any, name: str, operation: Operation, cases: int, seed: int) -> Outcome:
    counts: Counter[str] = Counter()
    first = ""
    for case in range(cases):
        admissible = _is_admissible(name, case)
        outcome, why = _judged(module, operation, operands_of(name, seed, case), admissible)
        counts[outcome] += 1
        first = first or why
    kinds = ("exact", "refused", "wrong", "over_refused", "crashed")
    exact, refused, wrong, over_refused, crashed = (counts[kind] for kind in kinds)
    return Outcome(exact, refused, wrong, over_refused, crashed, first)


def _judged(
    module: Any, operation: Operation, operands: tuple[Any, ...], admissible: bool
) -> tuple[str, str]:
    theirs = [_converted(module, x) for x in operands]
    said = f"{operation.names[0]}({', '.join(map(str, operands))})"
    try:
        result = _function(module, operation)(*theirs)
    except _REFUSALS as error:
        if not admissible and not _exists(operation, operands):
            return "refused", ""
        return "over_refused", f"{said} is refused: {type(error).__name__}"
    except Exception as error:
        return "crashed", f"{said}: {type(error).__name__}: {error}"
    try:
        operation.check(*operands, result)
    except WrongResultError as error:
        return "wrong", str(error)
    except _MALFORMED as error:
        return "wrong", f"{said} = {result}: {str(error).partition(chr(10))[0]}"
    return "exact", ""


def _converted(module: Any, x: Any) -> Any:
    if isinstance(x, tuple):
        return tuple([_converted(module, part) for part in x])
    return module.Layout(x.shape, x.stride) if isinstance(x, Layout) else x


def _exists(operation: Operation, operands: tuple[Any, ...]) -> bool:
    try:
        result = getattr(algebra, operation.names[0])(*operands)
    except LayoutError:
        return False
    operation.check(*operands, result)
    return True


def table(outcomes: dict[str, Outcome]) -> str:
    """Return the outcomes as a table, and the first fault of each operation below it.

    >>> print(table({"coalesce": Outcome(9, 0, 1, 0, 0, "coalesce(4:1) = 4:2: wrong")}))
    | operation | exact | refused rightly | wrong | refused though exact | crashed |
    | --- | --- | --- | --- | --- | --- |
    | coalesce | 9 | 0 | 1 | 0 | 0 |
    <BLANKLINE>
    coalesce(4:1) = 4:2: wrong
    """
    lines = [
        "| operation | exact | refused rightly | wrong | refused though exact | crashed |",
        "| --- " * 6 + "|",
    ]
    for name, outcome in outcomes.items():
        lines.append(f"| {name} | " + " | ".join(map(str, outcome[:5])) + " |")
    faults = [outcome.first for outcome in outcomes.values() if outcome.first]
    return "\n".join([*lines, *([""] if faults else []), *faults])
