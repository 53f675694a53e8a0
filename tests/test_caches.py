"""Process-wide caches: bounded, the last used stay, all of them are known and can be cleared."""

from __future__ import annotations

import ast
import gc
import re
import sys
import threading
import tracemalloc
from collections import OrderedDict
from collections.abc import Iterator
from functools import partial
from importlib import import_module
from pathlib import Path
from pkgutil import walk_packages
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import layoutconv as lc
from layoutconv.base import caches
from layoutconv.base.caches import (
    BoundedCache,
    clear_caches,
    footprint,
    kept_in,
    remembered,
    usages,
)
from layoutconv.conv import ConvProblem, fprop_view
from layoutconv.kernels.compile import store

from .sources import statements

ROOT = Path(__file__).parents[1]
CONTAINERS = {
    "dict", "list", "set", "deque", "defaultdict", "OrderedDict", "WeakKeyDictionary",
    "WeakTensorKeyDictionary", "WeakValueDictionary", "WeakSet", "Counter",
}  # fmt: skip


# -- one cache ------------------------------------------------------------------------------------

OPERATIONS = st.lists(
    st.one_of(
        st.tuples(st.just("put"), st.integers(0, 12), st.integers(0, 60), st.integers(1, 3)),
        st.tuples(st.just("get"), st.integers(0, 12)),
        st.tuples(st.just("drop"), st.integers(0, 12)),
    ),
    max_size=80,
)


@given(OPERATIONS, st.integers(2, 12), st.integers(40, 400))
def test_it_is_bounded_and_what_was_used_last_stays(
    operations: list[tuple[Any, ...]], entries: int, nbytes: int
) -> None:
    """Beside a model that knows the order of use: the last that fit into half are all there.

    What was put anew counts with the most that it ever took, and what was dropped counts, too:
    others may have gone for either.
    """
    cache: BoundedCache[int, tuple[int, int]] = BoundedCache("", entries=entries, nbytes=nbytes)
    used: OrderedDict[int, tuple[int, int]] = OrderedDict()  # the most that each key took
    there: dict[int, int] = {}  # of keys that were put, and not dropped, the number of the put
    for number, (what, key, *size) in enumerate(operations):
        if what == "put":
            cache.put(key, (key, number), *size)
            there.pop(key, None)
            if size[0] <= nbytes // 2 and size[1] <= max(1, entries // 2):
                there[key] = number
                used[key] = tuple(map(max, size, used.pop(key, size)))
        elif what == "drop":
            cache.drop(key)
            there.pop(key, None)
        else:
            found = cache.get(key)
            assert found is None or found == (key, there[key])
            if found is not None:
                used.move_to_end(key)
        usage = cache.usage()
        assert usage.entries <= max(2, entries)
        assert usage.nbytes is not None
        assert usage.nbytes <= nbytes
        assert len(cache) == len(cache.values())
    many = held = 0
    for key, (size, count) in reversed(used.items()):
        many, held = many + count, held + size
        if many > max(1, entries // 2) or held > nbytes // 2:
            break
        if key in there:
            assert (key, there[key]) in cache.values()


def test_one_at_a_time_makes_room() -> None:
    """An entry that is used between two others is not dropped with all the rest."""
    cache: BoundedCache[int, str] = BoundedCache("", entries=100, nbytes=1 << 20)
    for number in range(1000):
        cache.put(number, "kept", 10)
        assert all(cache.get(often) for often in range(min(number, 10)))
    assert cache.get(500) is None
    assert cache.get(990)


def test_threads_share_it() -> None:
    """Between a check and what follows it each of four threads may add one, young and then old."""
    cache: BoundedCache[int, int] = BoundedCache("", entries=16, nbytes=1600)
    wrong = []

    def run(first: int) -> None:
        for number in range(first, first + 4000):
            key = number % 23
            cache.put(key, key * key, 50 + key)
            found = cache.get((key * 7) % 23)
            if found not in (None, ((key * 7) % 23) ** 2) or len(cache) > 16 + 2 * 4:
                wrong.append((key, found, len(cache)))
            if number % 500 == 0:
                cache.clear()

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        threads = [threading.Thread(target=run, args=(first,)) for first in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(interval)
    assert not wrong


def test_what_does_not_fit_is_made_every_time() -> None:
    made = []

    @kept_in(BoundedCache("", entries=8, nbytes=2000))
    def zeros(size: int, *, shift: int = 0) -> torch.Tensor:
        made.append((size, shift))
        return torch.zeros(size)

    assert zeros(10) is zeros(10)
    assert zeros(10, shift=1) is not zeros(10)
    assert zeros(1000) is not zeros(1000)
    assert made == [(10, 0), (10, 1), (1000, 0), (1000, 0)]


def test_of_arguments_without_a_hash_results_are_made_every_time() -> None:
    @kept_in(cache := BoundedCache[object, object]("", entries=8, nbytes=1000))
    def doubled(numbers: list[int], *, plus: object = 0) -> list[int]:
        if plus:
            raise TypeError("of the function")
        return [2 * number for number in numbers]

    assert doubled([1, 2]) == doubled([1, 2]) == [2, 4]
    assert not len(cache)
    with pytest.raises(TypeError, match="of the function"):
        doubled([1], plus=[1])


def test_a_footprint_is_about_what_memory_is_taken() -> None:
    """The footprint of views, which caches keep most, is about right: each number is an object."""
    problems = [ConvProblem((1, 500 + i, 400, 16), (16, 3, 3), padding=1) for i in range(20)]
    make = partial(getattr, fprop_view(problems[0]), "a")
    assert footprint(make) > footprint(make())
    clear_caches()
    gc.collect()
    tracemalloc.start()
    try:
        views = [fprop_view(problem) for problem in problems]
        clear_caches()
        gc.collect()
        taken, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert 0.5 < footprint(views) / taken < 1.5
    assert footprint(torch.zeros(1000)) > 4000
    held = torch.zeros(1000)
    assert footprint(lambda: held) > 4000  # a closure
    assert footprint(torch, torch.Tensor, footprint) < 1000


def test_a_footprint_leaves_out_the_cache_that_a_function_knows() -> None:
    """A kept call does not own what it may ask a cache for: else each entry weighs all others."""
    cache: BoundedCache[object, object] = BoundedCache("", entries=100, nbytes=1 << 20)

    @kept_in(cache)
    def made(number: int) -> list[int]:
        return list(range(number, number + 500))

    before = footprint(made)
    for number in range(20):
        made(1000 * number)
    assert len(cache) == 20
    assert footprint(made) == before


def test_functions_of_a_few_bytes_are_remembered() -> None:
    calls = []
    name = f"{__name__}.test_functions_of_a_few_bytes_are_remembered.<locals>.double"

    @remembered(2)
    def double(number: int) -> int:
        calls.append(number)
        return 2 * number

    try:
        assert [double(n) for n in (1, 1, 2, 3, 1)] == [2, 2, 4, 6, 2]
        assert calls == [1, 2, 3, 1]
        assert usages()[name] == (2, 2, None, None)
        clear_caches()
        assert usages()[name].entries == 0
    finally:
        del caches._FUNCTIONS[name]


# -- all of them ----------------------------------------------------------------------------------


def test_clearing_changes_no_result() -> None:
    x, w = torch.randn(1, 3, 8, 8), torch.randn(4, 3, 3, 3, requires_grad=True)
    cells = torch.tensor([[0, i, j, 0] for i in range(4) for j in range(4)], dtype=torch.int32)
    cloud = lc.SparseTensor(torch.randn(16, 3), cells, (4, 4, 4), batch_size=1)
    layer = lc.nn.SubmConv3d(3, 4, 3)

    def results() -> list[torch.Tensor]:
        y = lc.conv2d(x, w, padding=1)
        (grad,) = torch.autograd.grad(y.sum(), w)
        return [y, grad, layer(cloud).features]

    first = results()
    assert usages()["dense calls"].entries > 0
    assert usages()["sparse calls"].entries > 0
    for kernels in (False, True):
        clear_caches(kernels=kernels)
        assert not any(usage.nbytes for usage in usages().values())
        for _ in range(2):
            assert all(map(torch.equal, first, results()))


def test_kernels_are_unloaded_if_asked_for() -> None:
    store._loaded["key"] = print
    clear_caches()
    assert store._loaded
    clear_caches(kernels=True)
    assert not store._loaded


def endless(tree: ast.Module, *, of_algebra: bool = False) -> Iterator[str]:
    """Names of what a module remembers without a bound, or so that nobody can clear it.

    That is ``cache`` of a function of arguments, ``lru_cache`` (of the algebra, which imports
    nothing, without a number), and a container that begins empty, of the module or of a class.
    """
    for node in statements(tree):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            takes = isinstance(node, ast.FunctionDef) and any(
                (node.args.args, node.args.kwonlyargs, node.args.vararg, node.args.kwarg)
            )
            for decorator in map(ast.unparse, node.decorator_list):
                name = decorator.removeprefix("functools.").partition("(")[0]
                numbered = of_algebra and re.search(r"\((maxsize=)?\d+", decorator)
                if (name == "cache" and takes) or (name == "lru_cache" and not numbered):
                    yield node.name
        elif isinstance(node, ast.Assign | ast.AnnAssign) and _is_remembering(node.value):
            yield _target(node)
    for body in (tree.body, *(n.body for n in statements(tree) if isinstance(n, ast.ClassDef))):
        for node in body:
            if isinstance(node, ast.Assign | ast.AnnAssign) and _begins_empty(node.value):
                yield _target(node)


def _is_remembering(value: ast.expr | None) -> bool:
    names = "cache", "lru_cache", "functools.cache", "functools.lru_cache"
    return isinstance(value, ast.Call) and ast.unparse(value.func) in names


def _target(node: ast.Assign | ast.AnnAssign) -> str:
    return ast.unparse(node.targets[0] if isinstance(node, ast.Assign) else node.target)


def _begins_empty(value: ast.expr | None) -> bool:
    if isinstance(value, ast.Dict | ast.List | ast.Set):
        return not getattr(value, "keys", None) and not getattr(value, "elts", None)
    if isinstance(value, ast.Call) and not value.args:
        return ast.unparse(value.func).partition("[")[0].rpartition(".")[2] in CONTAINERS
    return False


def test_nothing_else_remembers_without_end() -> None:
    listed = set(re.findall(r"^\| `([\w.]+)`", memory_page(), re.M))
    found = set()
    for path in (*(ROOT / "layoutconv").rglob("*.py"), *(ROOT / "kernels").rglob("*.py")):
        where = ".".join(path.relative_to(ROOT).with_suffix("").parts)
        if where != "layoutconv.base.caches":
            tree, of_algebra = ast.parse(path.read_text("utf-8")), ".algebra." in where
            found |= {f"{where}.{name}" for name in endless(tree, of_algebra=of_algebra)}
    assert found - listed == set()
    assert found == {
        "kernels.compile.packed._packs",
        "kernels.compile.store._loaded",
        "kernels.compile.store._told",
        "kernels.maps.device_tables._KEYS",
        "kernels.maps.device_tables._READ_BY_GRAPHS",
        "layoutconv.algebra.display._DRAW",
        "layoutconv.algebra.late._FOUND",
        "layoutconv.base.processes._idle",
        "layoutconv.compat.installing._installed",
        "layoutconv.distributed.agreement._agreed",
        "layoutconv.distributed.agreement._cpu_groups",
        "layoutconv.drawing.figure.RENDERERS",
        "layoutconv.nn.graph_calls._CAPTURED",
        "layoutconv.nn.graph_recorder._FAILED",
        "layoutconv.sparse.coords.row_plan._anywhere",
    }


@pytest.mark.parametrize(
    "text",
    [
        "@cache\ndef found(x): ...",
        "@functools.cache\ndef found(*x): ...",
        "@lru_cache\ndef found(x): ...",
        "@lru_cache(maxsize=None)\ndef found(x): ...",
        "@functools.lru_cache(8)\nclass found: ...",
        "found = cache(str)",
        "found = lru_cache(str)",
        "found = {}",
        "found: dict[int, int] = dict()",
        "found = defaultdict()",
        "found = weakref.WeakKeyDictionary()",
        "found = list[int]()",
        "class A:\n    found = []",
    ],
)
def test_what_has_no_end_is_found(text: str) -> None:
    assert list(endless(ast.parse(text))) == ["found"]


def test_what_has_an_end_is_not() -> None:
    text = "@cache\ndef a(): ...\nb, c = {1: 2}, [1]\nd: dict = dict(pairs)"
    assert list(endless(ast.parse(text))) == []
    assert list(endless(ast.parse("@lru_cache(9)\ndef a(x): ..."), of_algebra=True)) == []


def memory_page() -> str:
    return (ROOT / "docs" / "memory.md").read_text("utf-8")


def test_every_cache_is_in_the_table() -> None:
    """With the bounds that it has; and nothing that there is not."""
    for package in (lc, sys.modules["layoutconv.kernels"]):
        for module in walk_packages(package.__path__, f"{package.__name__}."):
            if not re.search(r"benchmarks|__main__|compat\.spconv\.", module.name):
                import_module(module.name)
    rows = {}
    for line in memory_page().splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if line.startswith("| ") and len(cells) == 4 and re.fullmatch(r"[\d,]+", cells[2]):
            name = cells[0].strip("`")
            rows[name] = int(cells[2].replace(",", "")), cells[3]
    known = {name: usage for name, usage in usages().items() if "<locals>" not in name}
    known = {name.removeprefix("layoutconv."): usage for name, usage in known.items()}
    assert rows.keys() == known.keys()
    for name, usage in known.items():
        entries, nbytes = rows[name]
        assert entries == usage.most_entries, name
        if usage.most_bytes is not None:
            assert nbytes == f"{usage.most_bytes >> 20} MB", name
