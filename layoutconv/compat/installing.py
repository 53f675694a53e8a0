"""Install packages of this folder under other libraries' names, for unchanged programs."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from pkgutil import walk_packages
from types import ModuleType


class Installed:
    """A package under another name; ``undo()`` uninstalls it, and so does the end of a ``with``."""

    def __init__(
        self,
        name: str,
        modules: Mapping[str, ModuleType],
        finder: _Absent,
        undone: Callable[[], None] | None,
    ) -> None:
        self._name, self._modules, self._finder = name, modules, finder
        self._undone = undone

    def undo(self) -> None:
        """Let ``import`` find the original modules again. Modules that imported ours keep it."""
        for name, module in self._modules.items():
            if sys.modules.get(name) is module:
                del sys.modules[name]
        if self._finder in sys.meta_path:
            sys.meta_path.remove(self._finder)
        if _installed.get(self._name) is self:
            del _installed[self._name]
            if self._undone is not None:
                self._undone()

    def __enter__(self) -> Installed:
        return self

    def __exit__(self, *_: object) -> None:
        self.undo()


class _Absent:
    """An import finder that explains why a module of the other package is missing."""

    def __init__(self, name: str, reasons: Mapping[str, str]) -> None:
        self._name, self._reasons = name, reasons

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        parts = name.split(".")
        if parts[0] != self._name or len(parts) == 1:
            return None
        for end in range(len(parts), 1, -1):
            reason = self._reasons.get(".".join(parts[1:end]))
            if reason is not None:
                raise ModuleNotFoundError(
                    f"layoutconv's {self._name} has no {name!r}: {reason}", name=name
                )
        raise ModuleNotFoundError(
            f"No module named {name!r}, in layoutconv's {self._name}", name=name
        )


_installed: dict[str, Installed] = {}


def is_installed(name: str) -> bool:
    """Return whether a package of ours is installed under a name.

    >>> is_installed("a_name_for_doctest")
    False
    """
    return name in _installed


def install_as(
    name: str,
    ours: str,
    absent: Mapping[str, str] | None = None,
    elsewhere: Mapping[str, ModuleType] | None = None,
    undone: Callable[[], None] | None = None,
    alone: str | None = None,
) -> Installed:
    """Let ``import name``, and imports of its modules, find the package ``ours``.

    ``absent`` maps modules that ours lacks to the reason; ``elsewhere`` maps further module names
    to our modules; ``undone`` is called when it is uninstalled. Modules whose names begin with
    ``alone`` are found without the package's name, too, unless ``import`` finds another module of
    that name, such as the program's own. A second call changes nothing.

    Raises ``RuntimeError`` if another package of that name was imported already.

    >>> with install_as("a_name_for_doctest", "layoutconv.compat.spconv"):
    ...     from a_name_for_doctest.pytorch import SubMConv3d
    >>> SubMConv3d.__module__
    'layoutconv.compat.spconv.pytorch.conv'
    """
    if name in _installed:
        return _installed[name]
    there = sys.modules.get(name)
    if there is not None and there.__name__ != ours:
        where = getattr(there, "__file__", None) or "somewhere"
        raise RuntimeError(
            f"{name} was imported already, from {where}: call {ours}.install() "
            "before anything imports it"
        )
    package = import_module(ours)
    modules = {name: package}
    for found in walk_packages(package.__path__, f"{ours}."):
        modules[name + found.name.removeprefix(ours)] = import_module(found.name)
    for inner, module in (elsewhere or {}).items():
        modules[f"{name}.{inner}"] = module
    if alone is not None:
        short = {inner.removeprefix(f"{name}."): module for inner, module in modules.items()}
        own = [inner for inner in short if inner.startswith(alone) and not _is_there(inner)]
        modules |= {inner: short[inner] for inner in own}
    sys.modules.update(modules)
    finder = _Absent(name, absent or {})
    sys.meta_path.insert(0, finder)  # type: ignore[arg-type]
    _installed[name] = Installed(name, modules, finder, undone)
    return _installed[name]


def _is_there(name: str) -> bool:
    """Return whether ``import`` finds a module of a name, or the package that it would be in.

    >>> _is_there("sys"), _is_there("json.tool"), _is_there("a_name_for_doctest.inner")
    (True, True, False)
    """
    package = name.partition(".")[0]
    return package in sys.modules or find_spec(package) is not None
