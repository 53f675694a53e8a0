"""The house: arrows between rooms point down, no circles, and nothing too long to read at once;
few hands between a call and its kernel.

Imports inside of functions count as any other; those for type checkers alone close circles, too.
"""

from __future__ import annotations

import ast
import functools
import gc
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch._subclasses import FakeTensor

import layoutconv as lc
from layoutconv.gpu import map_views, plan
from layoutconv.ops import sparse_calls, sparse_operators
from layoutconv.sparse import submanifold_map
from layoutconv.view import view_cache

from .sources import below, statements
from .stand_ins import Gpu

ROOT = Path(__file__).resolve().parents[1]
# From the ground up, as CONTRIBUTING has them; of a room within another, the longer name counts.
FLOORS = [
    "errors", "base", "algebra", "view", "conv", "sparse.views", "planning", "kernels.common",
    "kernels.gemm", "kernels.compile", "kernels.maps", "kernels.pointwise", "tensors",
    "sparse.coords", "sparse.maps", "sparse.stream", "sparse", "cpu", "gpu", "ops", "tuning", "nn",
    "compat", "distributed", "deploy", "drawing", "cli",
]  # fmt: skip
MOST_LINES, MOST_OF_A_FUNCTION, MOST_PARAMETERS = 500, 60, 8


def files() -> list[Path]:
    folders = (ROOT / "layoutconv", ROOT / "kernels")
    links = ("kernels", "benchmarks")  # in the package, to folders beside it
    found = [path for folder in folders for path in sorted(folder.rglob("*.py"))]
    return [
        p for p in found if p.relative_to(ROOT).parts[:2] not in [("layoutconv", n) for n in links]
    ]


def module(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    parts = parts if parts[0] == "layoutconv" else ("layoutconv", *parts)
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {module(path): path for path in files()}


def imported(name: str, types: bool = False) -> Iterator[str]:
    """The modules of the package that one imports; with ``types``, for type checkers, too."""
    path = MODULES[name]
    package = name if path.name == "__init__.py" else name.rpartition(".")[0]
    waiting: list[ast.AST] = [ast.parse(path.read_text("utf-8"))]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.If) and is_for_checkers(node.test) and not types:
            waiting += node.orelse
            continue
        waiting += below(node)
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            above = package.split(".")
            home = ".".join(above[: len(above) - node.level + 1]) if node.level else ""
            base = ".".join(filter(None, (home, node.module)))
            names = [f"{base}.{alias.name}" for alias in node.names]
            names = [full if full in MODULES else base for full in names]
        else:
            continue
        yield from (found for found in names if found in MODULES and found != name)


def is_for_checkers(test: ast.expr) -> bool:
    names = [getattr(node, "id", getattr(node, "attr", "")) for node in ast.walk(test)]
    return "TYPE_CHECKING" in names


@functools.cache
def arrows(types: bool = False) -> dict[str, set[str]]:
    """Modules by what they import; the package itself says where things are, and imports on demand.

    Packages say the same of their rooms, to type checkers. To parse all modules takes seconds, so
    nothing does when tests are collected.
    """
    packages = {name for name, path in MODULES.items() if path.name == "__init__.py"}
    return {
        name: set(imported(name, types and name not in packages)) - {"layoutconv"}
        for name in MODULES
        if name != "layoutconv"
    }


def floor(name: str) -> int | None:
    parts = name.split(".")[1:]
    for count in (2, 1):
        if ".".join(parts[:count]) in FLOORS:
            return FLOORS.index(".".join(parts[:count]))
    return None  # outside of the rooms: the demo, the reference


def test_arrows_point_down() -> None:
    up = [
        f"{name} -> {other}" for name, others in arrows().items() for other in others
        if (here := floor(name)) is not None and (there := floor(other)) is not None
        and there > here
    ]  # fmt: skip
    assert sorted(up) == []


def test_there_are_no_circles() -> None:
    """Modules that import nothing are taken away until none is left, or a circle is.

    Types refer to each other only where objects do.
    """
    left = {name: set(others) for name, others in arrows(types=True).items()}
    for name, other in MUTUAL:
        assert f"layoutconv.{other}" not in arrows()[f"layoutconv.{name}"]
        left[f"layoutconv.{name}"].remove(f"layoutconv.{other}")
    while done := {name for name, others in left.items() if not others}:
        left = {name: others - done for name, others in left.items() if name not in done}
    assert sorted(left) == []


# Cells keep the maps that lead from them and what is known of them, and both refer to cells.
MUTUAL = {
    ("sparse.coords.coordinates", "sparse.maps.two_way"),
    ("sparse.coords.known_cells", "sparse.coords.coordinates"),
    ("sparse.coords.known_cells", "sparse.maps.foresight"),
    ("sparse.coords.known_cells", "sparse.maps.two_way"),
    ("sparse.coords.repeats", "sparse.coords.coordinates"),
    ("sparse.coords.row_plan", "sparse.coords.coordinates"),
    ("sparse.coords.row_plan", "sparse.maps.two_way"),
}


def test_contributing_has_the_floors() -> None:
    page = (ROOT / "CONTRIBUTING.md").read_text("utf-8")
    rooms = [
        cell for cells in re.findall(r"^\| (`[^|]+) \|", page, re.M) for cell in cells.split(", ")
    ]
    assert [room.strip("`").replace("/", ".") for room in rooms] == FLOORS


@functools.cache
def functions() -> list[tuple[str, int, int]]:
    """Names of functions with their lines and parameters, without trees, which slow collections."""
    return [
        (f"{name.removeprefix('layoutconv.')}.{node.name}", lines_of(node), parameters_of(node))
        for name, path in MODULES.items()
        for node in statements(ast.parse(path.read_text("utf-8")))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    ]


def lines_of(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Lines from ``def`` on, without the docstring."""
    first, end = function.body[0], function.end_lineno or 0
    if ast.get_docstring(function, clean=False) is not None:
        end -= (first.end_lineno or 0) - first.lineno + 1
    return end - function.lineno + 1


def parameters_of(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    every = function.args.posonlyargs + function.args.args + function.args.kwonlyargs
    return sum(one.arg not in ("self", "cls") for one in every)


def test_files_are_short() -> None:
    assert [
        name
        for name, path in MODULES.items()
        if len(path.read_text("utf-8").splitlines()) > MOST_LINES
    ] == []


def test_functions_are_short() -> None:
    """But for these: device code, traced in one go, the choice of a kernel, steps of drawings."""
    assert {name for name, lines, _ in functions() if lines > MOST_OF_A_FUNCTION} == {
        "drawing.followed.composition_steps",
        "drawing.followed.divide_steps",
        "kernels.gemm.mainloop_sm80.__call__",
    }


def test_functions_take_few_parameters() -> None:
    """But for torch's and other libraries' signatures, schemas of operators, and device entries."""
    found = {name for name, _, count in functions() if count > MOST_PARAMETERS}
    assert {name for name in found if not name.startswith(TORCH)} == MANY


TORCH = ("nn.", "compat.", "distributed.functional.", "distributed.modules.")
MANY = {
    "gpu.gathered.gather", "gpu.select.choose_kernel",
    "kernels.gemm.gemm_kernel.__call__", "kernels.gemm.implicit_gemm.kernel",
    "kernels.pointwise.gather_pool.__call__",
    "ops.execute.execute",
    "sparse.maps.kernel_map.strided_map", "sparse.maps.kernel_map.transposed_map",
    "sparse.views.kernel_map_dgrad_view", "tuning.race.tune",
}  # fmt: skip


def test_class_names_are_unique() -> None:
    """But for other libraries' names, classes that stand in for a base of their name, and an
    epilogue's step and a module that are both public.
    """
    found: dict[str, list[str]] = {}
    for name, path in MODULES.items():
        if name.startswith("layoutconv.compat."):
            continue
        for node in statements(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.ClassDef) and not stands_in(node):
                found.setdefault(node.name, []).append(name.removeprefix("layoutconv."))
    assert {name: at for name, at in found.items() if len(at) > 1} == {
        "Residual": ["nn.residual", "view.epilogue"]
    }


def stands_in(node: ast.ClassDef) -> bool:
    """Return whether a class is named as one of its bases, as ``Conv3d`` of split volumes is."""
    return node.name in [getattr(base, "attr", "") for base in node.bases]


def is_view(node: ast.expr) -> bool:
    return ast.unparse(node).endswith("view")


def kept_names(tree: ast.AST) -> Iterator[str]:
    """The names in ``view.kept["name"]`` and ``view.kept.get("name")``, or another method."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Subscript):
            kept, name = node.value, node.slice
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.args:
            kept, name = node.func.value, node.args[0]
        else:
            continue
        if isinstance(kept, ast.Attribute) and kept.attr == "kept" and is_view(kept.value):
            yield ast.literal_eval(name)


def test_views_keep_what_is_listed() -> None:
    """Each name by the files that ``ViewCache`` lists; and nobody writes past it."""
    listed, found = dict[str, set[str]](), dict[str, set[str]]()
    for name, rooms in re.findall(
        r'^\| ``"(.+)"`` \|.*\| (.+) \|$', view_cache.__doc__ or "", re.M
    ):
        listed[name] = set(re.findall("``(.+?)``", rooms))
    past = []
    for path in files():
        tree = ast.parse(path.read_text("utf-8"))
        for name in kept_names(tree):
            found.setdefault(name, set()).add(module(path).removeprefix("layoutconv."))
        past += [
            f"{module(path)}:{node.lineno}"
            for node in ast.walk(tree)
            if isinstance(node, ast.Attribute) and node.attr == "__dict__"
            and is_view(node.value)
        ]  # fmt: skip
    assert found == listed
    assert past == []


def test_docstrings_begin_with_the_thing() -> None:
    """With a verb or a noun phrase, not with a question or half a sentence."""
    folders = ("layoutconv", "kernels", "benchmarks", "tools", "examples", "tests", "docs")
    paths = {p.resolve() for folder in folders for p in (ROOT / folder).rglob("*.py")}
    kinds = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
    found = [
        (path.relative_to(ROOT).as_posix(), text.splitlines()[0])
        for path in sorted(paths)
        for node in statements(ast.parse(path.read_text("utf-8")))
        if isinstance(node, kinds) and (text := ast.get_docstring(node))
    ]
    assert [at for at in found if re.match(r"(What|Whether|How|Of|Those)\b", at[1])] == []


def holders(call: Callable[[], Any], buffers: set[int]) -> set[str]:
    """The classes of the package that hold any of ``buffers``, in frames of a call or after it."""
    found: set[str] = set()

    def holds(value: Any, depth: int = 0) -> bool:
        if isinstance(value, torch.Tensor):
            has_memory = value.layout == torch.strided and not isinstance(value, FakeTensor)
            return has_memory and value.untyped_storage().data_ptr() in buffers
        parts = value.values() if type(value) is dict else value
        inside = depth < 2 and type(value) in (tuple, list, dict)
        return inside and any(holds(part, depth + 1) for part in parts)

    def look(value: Any) -> None:
        kind = type(value)
        if not str(kind.__module__).startswith("layoutconv."):
            return
        slots = [name for base in kind.__mro__ for name in getattr(base, "__slots__", ())]
        fields = [getattr(value, name, None) for name in slots if name != "__weakref__"]
        fields.extend(getattr(value, "__dict__", {}).values())
        fields.extend(value if isinstance(value, tuple) else ())
        if any(map(holds, fields)):
            found.add(kind.__qualname__)

    def note(frame: Any, event: str, _: Any) -> None:
        if event == "return":
            for value in frame.f_locals.values():
                look(value)

    sys.setprofile(note)
    try:
        call()
    finally:
        sys.setprofile(None)
    gc.unfreeze()  # what was there before the tests may hold one, too
    for value in gc.get_objects():
        look(value)
    return found


def test_four_classes_hold_an_index_buffer(monkeypatch: pytest.MonkeyPatch, gpu: Gpu) -> None:
    """From ``subm_conv`` to the kernel: a map, an operator's tensors, a pass, a layout."""
    gpu.like("sm_90a")
    gpu.loads(lambda *of: lambda *tensors: None)
    gpu.says(device_count=1)
    gpu.runs_kernels()
    monkeypatch.setattr(sys.modules["layoutconv.ops.execute"], "execute_cpu", plan.execute_gpu)
    cells = torch.cartesian_prod(torch.arange(2), *[torch.arange(4)] * 3).int()
    w = torch.randn(8, 3, 3, 3, 8, requires_grad=True)

    def held(buffers_of: Callable[[lc.SparseTensor], Iterable[torch.Tensor]]) -> set[str]:
        for kept in (map_views, sparse_calls):
            kept.forget()
        x = lc.SparseTensor(torch.randn(128, 8, requires_grad=True), cells, (4, 4, 4), 2)
        buffers = {t.untyped_storage().data_ptr() for t in buffers_of(x)}

        def call() -> None:
            with torch.autograd.set_multithreading_enabled(False):
                for _ in range(3):  # by the operator, by a call that is bound, by one that is known
                    lc.subm_conv(x, w).features.sum().backward()

        return holders(call, buffers)

    def pairs_of(x: lc.SparseTensor) -> Iterable[torch.Tensor]:
        pairs = sparse_operators.pairs_for(submanifold_map(x.coordinates), (8, 8), torch.float32)
        return pairs.outputs, pairs.inputs

    road = {"MapTensors", "MapPass", "IndexedGather"}
    assert held(lambda x: [submanifold_map(x.coordinates).index]) == {"DeferredMapIndex", *road}
    assert held(pairs_of) == {"Pairs", *road}
