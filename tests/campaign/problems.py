"""The families of problems: how one is drawn, run, made smaller, written down and read back."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import MISSING, asdict, dataclass, fields, is_dataclass, replace
from typing import Any, Protocol, get_type_hints

from .bench import Bench


class Problem(Protocol):
    """A frozen dataclass of numbers, words and tuples."""

    family: str
    seed: int

    @property
    def kind(self) -> str: ...

    @property
    def type(self) -> str: ...


@dataclass(frozen=True)
class Family:
    """Functions of a family's problems.

    Args:
        kind: the dataclass.
        draw: the problem of a seed and of a budget's name.
        run: raises ``WrongResultError``, or whatever a call raises.
        smaller: problems with less of one thing; some may be none that a call takes.
        fits: whether a call takes it.
    """

    kind: type
    draw: Callable[[int, str], Any]
    run: Callable[[Any, Bench], None]
    smaller: Callable[[Any], Iterator[Any]]
    fits: Callable[[Any], bool]


def family(name: str) -> Family:
    """One of ``FAMILIES``; torch is imported with it."""
    if name == "dense":
        from . import dense
        from .dense_run import run_dense

        return Family(dense.Dense, dense.draw_dense, run_dense, dense.smaller_dense, dense.fits)
    if name == "sparse":
        from . import sparse
        from .sparse_run import run_sparse

        of = sparse.Sparse, sparse.draw_sparse, run_sparse, sparse.smaller_sparse, sparse.fits
        return Family(*of)
    if name == "views":
        from . import views
        from .views_run import run_view

        return Family(views.View, views.draw_view, run_view, views.smaller_view, views.fits)
    if name == "networks":
        from . import networks
        from .networks_run import run_network

        given = networks.draw_network, run_network, networks.smaller_network, networks.fits
        return Family(networks.Network, *given)
    if name == "sparse_networks":
        from . import sparse_networks as clouds
        from .sparse_networks_run import run_sparse_network

        some = clouds.draw_sparse_network, run_sparse_network, clouds.smaller_sparse_network
        return Family(clouds.SparseNetwork, *some, clouds.fits)
    raise ValueError(f"no family {name!r}")


FAMILIES = ("dense", "sparse", "views", "networks", "sparse_networks")


def to_json(problem: Any) -> dict[str, Any]:
    """A problem as ``json.dumps`` takes it."""
    return {"family": problem.family, **asdict(problem)}


def from_json(written: dict[str, Any]) -> Any:
    """The problem that ``to_json`` wrote, also after a way through JSON."""
    found = dict(written)
    return _made(family(found.pop("family")).kind, found)


def _made(kind: type, values: dict[str, Any]) -> Any:
    hints = get_type_hints(kind)
    found = {
        field.name: _made(hints[field.name], values[field.name])
        if is_dataclass(hints[field.name])
        else _tuples(values[field.name])
        for field in fields(kind)
        if field.name in values
    }
    return kind(**found)


def _tuples(value: Any) -> Any:
    return tuple(map(_tuples, value)) if isinstance(value, list | tuple) else value


def code(problem: Any, tiles: str = "chosen") -> str:
    """A few lines that repeat a problem: what differs from the defaults; a network's own code."""
    any_tile = "" if tiles == "chosen" else f", tiles={tiles!r}"
    text = problem.text().splitlines() if hasattr(problem, "text") else []
    lines = [
        *(f"# {line}".rstrip() for line in text),
        f"from tests.campaign.{problem.family} import *",
        "from tests.campaign.worker import repeat",
        f"repeat({_text(problem)}{any_tile})",
    ]
    return "\n".join(lines)


def _text(value: Any) -> str:
    if not is_dataclass(value):
        return repr(value)
    given = [
        f"{field.name}={_text(getattr(value, field.name))}"
        for field in fields(value)
        if not _is_default(field, getattr(value, field.name))
    ]
    return f"{type(value).__name__}({', '.join(given)})"


def _is_default(field: Any, value: Any) -> bool:
    if field.default is not MISSING:
        return bool(value == field.default)
    return field.default_factory is not MISSING and bool(value == field.default_factory())


__all__ = ["FAMILIES", "Family", "code", "family", "from_json", "replace", "to_json"]
