"""The names that the folder exports, and the little that it imports."""

from __future__ import annotations

import ast
import doctest
import importlib
import inspect
import re
import subprocess
import sys
import types
from pathlib import Path

import pytest

import layoutconv
from layoutconv import algebra

from .invalid_operands import CALLS


def test_every_exported_name_is_the_thing_and_not_a_module():
    for name in algebra.__all__:
        value = getattr(algebra, name)
        assert not isinstance(value, types.ModuleType), name
        assert getattr(layoutconv, name) is value


def seen_by_the_type_checker(module: types.ModuleType) -> dict[str, str | None]:
    """The names that a package imports for the type checker alone, and where from."""
    tree = ast.parse(Path(module.__file__).read_text())
    guarded = next(node for node in tree.body if isinstance(node, ast.If))
    return {
        alias.name: node.module
        for node in guarded.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }


def test_what_is_loaded_later_is_what_the_type_checker_sees():
    seen = seen_by_the_type_checker(algebra)
    assert seen == algebra._HOME
    assert set(seen) <= set(algebra.__all__)


def test_every_top_level_name_is_there_and_seen_by_the_type_checker():
    pytest.importorskip("torch")
    seen = set(seen_by_the_type_checker(layoutconv)) - {"*"}
    assert seen == {*layoutconv._ROOMS, *layoutconv._HOME}
    assert len(set(layoutconv.__all__)) == len(layoutconv.__all__)
    for name in {*layoutconv.__all__, *layoutconv._ROOMS}:
        assert getattr(layoutconv, name) is not None
        assert name in dir(layoutconv)


@pytest.mark.parametrize("module", ["layoutconv", "layoutconv.algebra"])
def test_a_star_import_keeps_the_names_of_torchs_packages(module):
    torch = pytest.importorskip("torch")
    names: dict[str, object] = {"nn": torch.nn, "sparse": torch.sparse, "testing": torch.testing}
    before = dict(names)
    exec(f"from {module} import *", names)
    assert {name: names[name] for name in before} == before
    assert names["composition"] is layoutconv.composition


def test_the_algebra_imports_the_standard_library_alone():
    code = (
        "import sys, layoutconv.algebra as a; [getattr(a, n) for n in a.__all__];"
        "print(*sorted({m.split('.')[0] for m in sys.modules}))"
    )
    loaded = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout.split()
    assert not {"numpy", "torch", "cutlass"} & set(loaded)
    assert "layoutconv" in loaded


def executed(module: str) -> set[str]:
    """The names whose examples tests/test_docstrings.py runs when it comes to a module."""
    found = doctest.DocTestFinder().find(importlib.import_module(module))
    return {test.name for test in found if test.examples}


@pytest.mark.parametrize("room", ["algebra", "testing", "testing.strategies", "testing.problems"])
def test_every_public_name_has_an_example_that_is_executed(room):
    module = importlib.import_module(f"layoutconv.{room}")
    here = executed(module.__name__)
    of_room = doctest.DocTestParser().get_examples(module.__doc__ or "")
    for name in module.__all__:
        value = inspect.unwrap(getattr(module, name))
        if f"{module.__name__}.{name}" in here:
            continue
        if not isinstance(value, type | types.FunctionType):
            if any(name in example.source for example in of_room):
                continue  # a constant has no docstring of its own
            value = type(value)
        assert f"{value.__module__}.{value.__qualname__}" in executed(value.__module__), name


def test_no_name_that_is_found_late_is_that_of_its_module():
    """Importing such a module would put it where the function is looked for."""
    assert not [name for name, home in algebra._HOME.items() if name == home]


PICTURES = {
    "row-major": "Layout make_layout Tensor make_tensor",
    "swizzled-banks": "Swizzle make_swizzle get_swizzle_portion ComposedLayout bank_conflicts",
    "banks": "bank_conflicts",
    "tiles": "zipped_divide logical_divide tiled_divide flat_divide local_tile tile_unzip",
    "complement": "complement logical_product zipped_product tiled_product flat_product",
    "blocked": "blocked_product tile_to_shape",
    "raked": "raked_product",
    "gathered": "IndexedGather CustomStride",
    "conv-padded": "make_composed_layout",
    "partition": "make_layout_tv local_partition",
    "tiled-copy": "TiledCopy make_tiled_copy make_tiled_copy_tv make_cotiled_copy "
    "make_tiled_copy_A make_tiled_copy_B make_tiled_copy_C make_tiled_copy_C_atom "
    "make_tiled_copy_S make_tiled_copy_D universal_copy ThrCopy CopyUnit copy_unit",
    "tiled-mma": "TiledMma make_tiled_mma ThrMma",
    "mma": "mma_atom MmaAtom wgmma_atom",
    "quad-pair": "mma_atom",
    "mfma": "mfma_atom",
    "ldmatrix": "copy_atom CopyAtom",
    "tensor-memory": "copy_atom tmem_accumulator tcgen05_atom",
    "tma-box": "tma_atom",
    "smem-atom": "smem_atom",
}


def test_names_that_are_about_a_picture_have_one():
    """Whatever a call gives that names threads and values, or swizzles, is drawn on a page."""
    shown = set().union(
        *[
            re.findall(r"!\[.*\]\(../images/tutorial/(.*).svg\)", page.read_text("utf-8"))
            for page in (Path(__file__).parents[2] / "docs" / "algebra").glob("*.md")
        ]
    )
    assert set(PICTURES) <= shown
    drawn = {name for names in PICTURES.values() for name in names.split()}
    assert drawn <= set(algebra.__all__)
    classes = "CopyAtom", "CopyUnit", "MmaAtom", "Swizzle", "TiledCopy", "TiledMma"
    kinds = (algebra.ComposedLayout, *[getattr(algebra, name) for name in classes])
    given = {
        name
        for name, (args, named) in CALLS.items()
        if isinstance(getattr(algebra, name)(*args, **named), kinds)
    }
    assert {*given, *classes} <= drawn
