"""Fixtures and markers that tests of several rooms share."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from types import ModuleType

import pytest

from .grid_cover import uncovered
from .stand_ins import (
    clock,
    compilations,
    copied_from,
    dense_execute,
    gpu,
    guards_in_python,
    kernel_folder,
    packed_for_any_gain,
    spoiled,
    staged,
    ungathered,
)
from .watched import watched

__all__ = [
    "clock", "compilations", "copied_from", "dense_execute", "gpu", "guards_in_python",
    "kernel_folder", "packed_for_any_gain", "spoiled", "staged",
    "ungathered", "watched",
]  # fmt: skip

_BENCHMARKS = Path(__file__).resolve().parents[1] / "benchmarks"
_BESIDE = Path(__file__).resolve().parents[2] / "shared" / "data"


@pytest.fixture
def spconv_not_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hide spconv's own modules, which tests that compare with it have imported."""
    for name in [name for name in sys.modules if name.split(".")[0] == "spconv"]:
        monkeypatch.delitem(sys.modules, name)


@pytest.fixture(scope="module")
def load_benchmark() -> Iterator[Callable[[str], ModuleType]]:
    """A function: a module of ``benchmarks/`` by name, which its scripts import as their own.

    ``benchmark`` is the fixture of pytest-benchmark, which may be installed.
    """
    sys.path.insert(0, str(_BENCHMARKS))
    yield import_module
    sys.path.remove(str(_BENCHMARKS))
    for path in _BENCHMARKS.glob("*.py"):
        sys.modules.pop(path.stem, None)


@pytest.fixture
def shared_cloud() -> Callable[[str], Path]:
    """The path of a real point cloud, by name; the test skips where there is none.

    They are not part of the project: they lie beside a checkout, in ``../shared/data``, or where
    the environment variable LAYOUTCONV_DATA says.
    """

    def find(name: str) -> Path:
        path = Path(os.environ.get("LAYOUTCONV_DATA", _BESIDE)) / name
        if not path.is_file():
            pytest.skip(f"no real point cloud at {path}; LAYOUTCONV_DATA may name its folder")
        return path

    return find


MARKERS = {
    "law": "states a law over drawn operands, in a room that compiles nothing",
    "compile": "compiles kernels, or runs them in the simulator",
    "gpu": "wants a GPU",
    "slow": "takes minutes; runs when asked for with -m slow",
    "chessboard": "a grid of cases of which a cover always runs; the others are deep",
    "deep": "another case of such a grid; runs when asked for with -m deep",
}
LAWFUL = "algebra", "conv", "cpu", "planning", "sparse", "view"  # rooms of laws


def pytest_configure(config: pytest.Config) -> None:
    for name, meaning in MARKERS.items():
        config.addinivalue_line("markers", f"{name}: {meaning}")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Import no room without laws where they alone are asked for: it takes longer than they do."""
    if _asked_for(config) != "law":
        return None
    room, *_ = collection_path.relative_to(Path(__file__).parent).parts
    return True if room not in LAWFUL else None


def pytest_pycollect_makeitem(collector: pytest.Collector, name: str, obj: object) -> list | None:
    """Collect no slow test that is not asked for, nor any of a slow class: there are thousands."""
    own = getattr(obj, "pytestmark", ()) if name.startswith(("test", "Test")) else ()
    slow = any(mark.name == "slow" for mark in own)
    return [] if slow and "slow" not in _asked_for(collector.config) else None


def _asked_for(config: pytest.Config) -> str:
    """The expression of ``-m``, "" without one."""
    return config.getoption("markexpr") or ""


@pytest.hookimpl(tryfirst=True)  # before pytest takes away what -m does not name
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    for item in items:
        for name in _markers_of(item, config.rootpath):
            item.add_marker(name)
    _mark_deep(items)
    deep = [item for item in items if item.get_closest_marker("deep")]
    if "deep" not in _asked_for(config) and not any("[" in name for name in config.args):
        config.hook.pytest_deselected(items=deep)
        left_out = set(deep)
        items[:] = [item for item in items if item not in left_out]


def _mark_deep(items: list[pytest.Item]) -> None:
    """Mark the deep cells of grids, those that a cover does without."""
    grids: dict[tuple[Path, str], list[pytest.Function]] = {}
    for item in items:
        marks = {mark.name for mark in item.iter_markers()}
        if "chessboard" in marks and "deep" not in marks and isinstance(item, pytest.Function):
            grids.setdefault((item.path, item.originalname), []).append(item)
    for cells in grids.values():
        for cell, deep in zip(cells, uncovered([c.callspec.params for c in cells]), strict=True):
            if deep:
                cell.add_marker("deep")


def _markers_of(item: pytest.Item, root: Path) -> list[str]:
    """Return the markers that the place of a test gives it."""
    if not item.path.is_relative_to(root):
        return []
    top, room, *_ = (*item.path.relative_to(root).parts, "")
    if room == "gpu":
        return ["gpu"]
    if top == "tools" or room == "kernels":
        return ["compile"]
    drawn = getattr(getattr(item, "obj", None), "is_hypothesis_test", False)
    return ["law"] if room in LAWFUL and drawn else []
