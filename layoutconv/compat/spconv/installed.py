"""layoutconv under the name of spconv, for programs whose files stay as they are."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.machinery import ModuleSpec
from pkgutil import walk_packages
from types import ModuleType, TracebackType

from .absent import MODULES

_OURS = __name__.rpartition(".")[0]  # layoutconv.compat.spconv


class Installed:
    """What :func:`install` did: ``undo()`` takes it back, and so does the end of a ``with``."""

    def __init__(self, names: Sequence[str], finder: _Absent) -> None:
        self._names, self._finder = names, finder

    def undo(self) -> None:
        """``import spconv`` finds what it would have found. Modules that imported it keep it."""
        global _installed
        for name in self._names:
            if getattr(sys.modules.get(name), "__name__", "").startswith(_OURS):
                del sys.modules[name]
        if self._finder in sys.meta_path:
            sys.meta_path.remove(self._finder)
        if _installed is self:
            _installed = None

    def __enter__(self) -> Installed:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.undo()


class _Absent:
    """Says of modules of spconv that there are none of, why."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        parts = name.split(".")
        if parts[0] != "spconv" or len(parts) == 1:
            return None
        for end in range(len(parts), 1, -1):
            reason = MODULES.get(".".join(parts[1:end]))
            if reason is not None:
                raise ModuleNotFoundError(
                    f"layoutconv's spconv has no {name!r}: {reason}", name=name
                )
        raise ModuleNotFoundError(f"No module named {name!r}, in layoutconv's spconv", name=name)


_installed: Installed | None = None


def install() -> Installed:
    """Have ``import spconv``, and all its modules, find those of layoutconv.

    Call it before anything imports spconv, say in ``sitecustomize`` or first in a program: then
    frameworks that were installed run as they are. Another spconv that is installed is not touched;
    it is only not found. A second call changes nothing.

    Returns a handle whose ``undo()`` takes it back, also at the end of a ``with``.

    Raises ``RuntimeError`` if another spconv was imported already: what has its classes would not
    know ours.

    >>> with install():
    ...     import spconv.pytorch as spconv
    ...     from spconv.pytorch.utils import PointToVoxel
    >>> spconv.SubMConv3d.__module__
    'layoutconv.compat.spconv.pytorch.conv'
    """
    global _installed
    if _installed is not None:
        return _installed
    there = sys.modules.get("spconv")
    if there is not None and there.__name__ != _OURS:
        where = getattr(there, "__file__", None) or "somewhere"
        raise RuntimeError(
            f"spconv was imported already, from {where}: call layoutconv.compat.spconv.install() "
            "before anything imports it"
        )
    package = import_module(_OURS)
    modules = {"spconv": package}
    for found in walk_packages(package.__path__, f"{_OURS}."):
        modules["spconv" + found.name.removeprefix(_OURS)] = import_module(found.name)
    sys.modules.update(modules)
    finder = _Absent()
    sys.meta_path.insert(0, finder)  # type: ignore[arg-type]
    _installed = Installed(list(modules), finder)
    return _installed
