"""Model files of frameworks, loaded from their checkouts without installing anything.

A file of a framework imports its package, whose ``__init__`` imports all of it, CUDA operators
included. :class:`Frameworks` is a finder of modules that runs no ``__init__`` of a checkout: names
that one would import are imported when they are asked for. What else is not installed, operators
and other packages, is a *stand-in*: it can be imported, derived from and used as a decorator, and
fails when it is called for a number. Few functions of other packages matter to what a network
computes; they are written out in :mod:`framework_parts`.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Mapping, Sequence
from importlib import import_module
from importlib.abc import Loader
from importlib.machinery import ModuleSpec
from importlib.util import spec_from_file_location, spec_from_loader
from pathlib import Path
from types import ModuleType
from typing import Any

# Packages that files look for to choose another way: these are to be missing.
MISSING = ("MinkowskiEngine", "cumm", "flash_attn", "ocnn", "torchsparse")


class StandIn:
    """Anything of a package that is not there: a base class, a decorator, a registry."""

    def __init__(self, *args: Any, **options: Any) -> None:
        pass

    def __call__(self, *args: Any, **options: Any) -> Any:
        """Return the decorated class; a decorator if called by name, as ``register_module()``."""
        if len(args) == 1 and not options and callable(args[0]):
            return args[0]
        return StandIn()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return StandIn()

    def __mro_entries__(self, bases: Any) -> tuple[type, ...]:
        return ()


class Frameworks:
    """Finders for the packages of checkouts, and for what their files import that is not there.

    Args:
        packages: the folders of each package, by its name; a file is taken from the first.
        parts: modules that are written out, by their names.
    """

    def __init__(
        self, packages: Mapping[str, Sequence[Path]], parts: Mapping[str, ModuleType]
    ) -> None:
        self._own, self._others = _Own(packages), _Others(packages, parts)

    def install(self) -> None:
        """Look in the checkouts first, and for stand-ins last."""
        sys.meta_path.insert(0, self._own)  # type: ignore[arg-type]
        sys.meta_path.append(self._others)  # type: ignore[arg-type]


class _Own:
    """Packages of the checkouts."""

    def __init__(self, packages: Mapping[str, Sequence[Path]]) -> None:
        self._packages = packages

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        top, *inner = name.split(".")
        if top not in self._packages:
            return None
        places = [folder.joinpath(*inner) for folder in self._packages[top]]
        for place in places:
            if place.with_suffix(".py").is_file():
                return spec_from_file_location(name, place.with_suffix(".py"))
        folders = [place for place in places if place.is_dir()]
        if folders:
            return spec_from_loader(name, _Folder(name, folders), is_package=True)
        return spec_from_loader(name, _Given(_StandInModule(name)), is_package=True)


class _Others:
    """Stand-ins for packages that files of the checkouts import, and nobody has."""

    def __init__(
        self, packages: Mapping[str, Sequence[Path]], parts: Mapping[str, ModuleType]
    ) -> None:
        self._packages, self._parts = packages, parts

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        top = name.split(".")[0]
        if top in MISSING or top == "spconv" or not self._is_wanted():
            return None
        module = self._parts.get(name) or _StandInModule(name)
        return spec_from_loader(name, _Given(module), is_package=True)

    def _is_wanted(self) -> bool:
        """Return whether a file of a checkout imports, or a package that it imports."""
        frame = sys._getframe(2)
        while frame.f_code.co_filename.startswith("<frozen importlib"):
            if frame.f_back is None:
                return False
            frame = frame.f_back
        return str(frame.f_globals.get("__name__")).split(".")[0] in self._packages


class _StandInModule(ModuleType):
    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return StandIn()


class _Given(Loader):
    """A loader of a module that is there already."""

    def __init__(self, module: ModuleType) -> None:
        self._module = module

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return self._module

    def exec_module(self, module: ModuleType) -> None:
        pass


class _Folder(Loader):
    """A loader of a package whose ``__init__`` is not run, but for what it itself defines."""

    def __init__(self, name: str, folders: Sequence[Path]) -> None:
        self._name, self._folders = name, folders

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        assert spec.submodule_search_locations is not None
        spec.submodule_search_locations.extend(map(str, self._folders))
        return _Package(self._name)

    def exec_module(self, module: ModuleType) -> None:
        files = [folder / "__init__.py" for folder in self._folders]
        file = next(filter(Path.is_file, files), None)
        code = ast.parse(file.read_text()) if file else ast.Module([], [])
        module.__dict__.update(_code=code, _file=str(file), _folders=self._folders)


class _Package(ModuleType):
    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        for node in self._code.body:
            if isinstance(node, ast.ImportFrom) and node.module:
                for alias in node.names:
                    if (alias.asname or alias.name) == name:
                        where = "." * node.level + (node.module or "")
                        found = getattr(import_module(where, self.__name__), alias.name)
                        self.__dict__[name] = found
                        return found
        for place in (folder / name for folder in self._folders):
            if place.with_suffix(".py").is_file() or place.is_dir():
                return import_module(f"{self.__name__}.{name}")
        own = [node for node in self._code.body if not isinstance(node, ast.ImportFrom)]
        if any(name in _bound(node) for node in own):
            whole = ast.Module(self._code.body, [])
            exec(compile(whole, self._file, "exec"), self.__dict__)
            return self.__dict__[name]
        return StandIn()


def _bound(node: ast.AST) -> set[str]:
    """The names that a statement of a module binds."""
    names = {n.id for n in ast.walk(node) if isinstance(n, ast.Name) and _stores(n)}
    defined = ast.FunctionDef | ast.ClassDef
    return names | {n.name for n in ast.walk(node) if isinstance(n, defined)}


def _stores(name: ast.Name) -> bool:
    return isinstance(name.ctx, ast.Store)
