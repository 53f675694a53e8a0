"""Index expressions, run in the languages that they are of."""

from __future__ import annotations

import random
import shutil
import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings

import layoutconv.algebra as lc
from layoutconv.algebra import CustomStride, E, IndexedGather, Layout, LayoutError, Stride, emit
from layoutconv.testing.oracle import components, leaves, split, table, volume
from layoutconv.testing.random_layouts import STRIDE_KINDS, domain, operand
from layoutconv.testing.strategies import layouts

NAMES = "ijkl"
BUFFERS = ("first", "second", "third", "fourth")
SAID = [kind for kind in STRIDE_KINDS if kind != "user"]


def names_of(shape):
    """A name for each mode."""
    return tuple(NAMES[: len(shape)]) if isinstance(shape, tuple) else NAMES[0]


def grids(shape):
    """The coordinates of a shape, an array for each mode."""
    modes = tuple(map(volume, shape)) if isinstance(shape, tuple) else (volume(shape),)
    crds = [split(n, modes) for n in range(volume(shape))]
    return dict(zip(NAMES, np.array(crds, dtype=np.int64).T, strict=False)) if crds[0] else {}


def buffers(x):
    """The index buffers of an operand by the names that an expression gives them."""
    gathers = []
    for part in x.parts():
        found = getattr(part, "_leaves", [])
        for _, d in found:
            func = getattr(d, "func", None)
            if isinstance(func, IndexedGather) and func not in gathers:
                gathers.append(func)
        if not found and part is not x:
            gathers += [g for g in buffers(part) if g not in gathers]
    return gathers


def integers(x):
    """The values of the names of extents and strides."""
    found = {}

    def look(leaf):
        if isinstance(leaf, lc.SymInt):
            found[str(leaf)] = int(leaf)
        return leaf

    x.map_integers(look)
    return found


def flat(value, size):
    """Evaluated expressions as what the oracle's table has: integers, or dicts of components."""
    if isinstance(value, tuple):
        parts = [flat(part, size) for part in value]
        columns = zip(*parts, strict=True)
        return [
            {(i, *path): v for i, part in enumerate(column) for path, v in components(part).items()}
            for column in columns
        ]
    return np.broadcast_to(value, size).tolist()


def expected(x):
    """The table of an operand, with the offset of a tensor."""
    if isinstance(x, lc.Tensor):
        return [v + x.offset if isinstance(v, int) else v for v in table(x.layout)]
    return table(x)


def evaluated(x, language, linear=False):
    """The expression of an operand, run by Python over NumPy arrays."""
    shape = domain(x).shape
    names = "n" if linear else names_of(shape)
    gathers = [np.array(g.index) for g in buffers(x)]
    text = emit(x, language, names, BUFFERS)
    known = {"n": np.arange(volume(shape))} if linear else grids(shape)
    known |= integers(x) | dict(zip(BUFFERS, gathers, strict=False))
    if language == "triton":
        known |= {name: Pointer(known[name]) for name in BUFFERS if name in known}
        known["tl"] = SimpleNamespace(load=lambda place: place.array[place.at])
    return flat(eval(text, known), volume(shape))


class Pointer:
    """A pointer as Triton's: plus an index it is a place, which is loaded."""

    def __init__(self, array, at=0):
        self.array, self.at = array, at

    def __add__(self, at):
        return Pointer(self.array, self.at + at)


def agrees(got, wanted):
    return [components(v) for v in got] == [components(v) for v in wanted]


@pytest.mark.parametrize("kind", SAID)
@pytest.mark.parametrize("language", ["numpy", "triton"])
def test_python_expressions(kind, language):
    @settings(deadline=None, max_examples=60)
    @given(layouts(max_rank=4, kind=kind))
    def play(layout):
        wanted = table(layout)
        assert agrees(evaluated(layout, language), wanted)
        assert agrees(evaluated(layout, language, linear=True), wanted)

    play()


@pytest.mark.parametrize("kind", ["swizzled", "offset", "tensor"])
@pytest.mark.parametrize("strides", ["int", "basis", "gather", "symbolic"])
def test_expressions_of_composed_layouts(kind, strides):
    if (kind, strides) == ("swizzled", "basis"):
        return
    for seed in range(60):
        x = operand(random.Random(seed), kind, strides)
        for language in ("numpy", "triton"):
            assert agrees(evaluated(x, language), expected(x)), (str(x), emit(x, language))


@settings(deadline=None, max_examples=20)
@given(layouts(max_rank=3, max_size=24))
def test_sympy_expressions(layout):
    sympy = pytest.importorskip("sympy")
    expression = sympy.sympify(emit(layout, "sympy", "n"))
    n = sympy.Symbol("n")
    assert [expression.subs(n, i) for i in range(layout.size())] == table(layout)


def test_sympy_expressions_of_names_and_buffers():
    sympy = pytest.importorskip("sympy")
    H, W = lc.symbols("H W")
    tiles = lc.zipped_divide(Layout((H, W), (W, 1)), (2, 8))
    names = {name: sympy.Symbol(name) for name in ("H", "W", "inside", "tile")}
    expression = sympy.sympify(emit(tiles, "sympy", ("inside", "tile")), locals=names)
    now = lc.substitute(tiles, H=6, W=16)
    for crd in lc.coordinates((16, 6)):
        at = dict(zip(("H", "W", "inside", "tile"), (6, 16, *crd), strict=True))
        assert expression.subs({names[k]: v for k, v in at.items()}) == now(*crd)
    rows = Layout(4, CustomStride(IndexedGather([7, 5, 3, 1]), 10))
    index = sympy.IndexedBase("index")
    found = sympy.sympify(emit(rows, "sympy"), locals={"index": index})
    assert found == index[sympy.Symbol("i")] * 10


# ---- C++ ---------------------------------------------------------------------------------------

PRELUDE = """
#include <cstdio>
#include <tuple>
namespace cute { template <class... T> auto make_coord(T... t) { return std::make_tuple(t...); } }
void say(long v) { printf("%ld ", v); }
template <class... T> void say(std::tuple<T...> t) {
  std::apply([](auto... v) { (say(v), ...); }, t);
}
"""


def shown(value, profile):
    """A value as C++ prints it: its components in the nesting of the expression."""
    if isinstance(profile, tuple):
        parts = components(value)
        return [
            v
            for i, part in enumerate(profile)
            for v in shown({p[1:]: x for p, x in parts.items() if p[0] == i}, part)
        ]
    found = components(value)
    return [found.get((), 0)]


def profile_of(text):
    """The nesting of a coordinate: a tuple of what its parts are."""
    return eval(text.replace("cute::make_coord", "coord"), Anything(coord=lambda *parts: parts))


class Anything(dict):
    """Names that all are one."""

    def __missing__(self, name):
        return np.ones((), dtype=np.int64) if name not in BUFFERS else np.ones(99, dtype=np.int64)


def cpp_function(x):
    gathers = zip(BUFFERS, buffers(x), strict=False)
    lines = [f"const long {n}[] = {{{', '.join(map(str, g.index))}}};" for n, g in gathers]
    lines += [f"const long {name} = {value};" for name, value in integers(x).items()]
    text = emit(x, "cuda", "n", BUFFERS)
    lines.append(f"for (long n = 0; n < {volume(domain(x).shape)}; ++n) say({text});")
    return "{ " + "\n".join(lines) + ' puts(""); }'


def test_cuda_expressions(tmp_path):
    compiler = shutil.which("c++") or shutil.which("g++") or shutil.which("clang++")
    if compiler is None:
        pytest.skip("there is no compiler of C++")
    rng = random.Random(0)
    cells = [("layout", kind) for kind in SAID]
    cells += [(kind, "int") for kind in ("swizzled", "offset", "tensor")]
    cells += [("offset", "basis"), ("tensor", "gather")]
    cases = [operand(rng, *cell, max_size=24) for cell in cells for _ in range(12)]
    source = tmp_path / "offsets.cpp"
    body = "\n".join(f"void f{i}() {cpp_function(x)}" for i, x in enumerate(cases))
    calls = "\n".join(f"f{i}();" for i in range(len(cases)))
    source.write_text(f"{PRELUDE}{body}\nint main() {{ {calls} }}\n")
    binary = str(tmp_path / "offsets")
    subprocess.run([compiler, "-std=c++17", "-O0", str(source), "-o", binary], check=True)
    printed = subprocess.run([binary], check=True, capture_output=True, text=True)
    for x, line in zip(cases, printed.stdout.splitlines(), strict=True):
        text = emit(x, "cuda", "n", BUFFERS)
        profile = profile_of(text) if "make_coord" in text else 0
        wanted = [v for value in expected(x) for v in shown(value, profile)]
        assert list(map(int, line.split())) == wanted, (str(x), text)


# ---- Triton ------------------------------------------------------------------------------------

KERNEL = """
@triton.jit
def kernel{i}(out, first, second, third, fourth, size: tl.constexpr):
    n = tl.arange(0, size)
    tl.store(out + n, {text})
"""
RUN = """
import sys
import torch
import triton
import triton.language as tl
{kernels}
for kernel, size, gathers in {calls}:
    out = torch.zeros(size, dtype=torch.int64)
    tables = [torch.tensor(g, dtype=torch.int64) for g in gathers]
    tables += [torch.zeros(1, dtype=torch.int64)] * (4 - len(tables))
    kernel[(1,)](out, *tables, size=size)
    print(*out.tolist())
"""


def test_triton_expressions_in_its_interpreter(tmp_path, monkeypatch):
    pytest.importorskip("triton")
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    rng = random.Random(1)
    cells = [("layout", "int"), ("layout", "F2"), ("layout", "gather"), ("layout", "strided")]
    cells += [(kind, "int") for kind in ("swizzled", "offset", "tensor")]
    cases = []
    for cell in cells:
        wanted = len(cases) + 6
        while len(cases) < wanted:
            x = operand(rng, *cell)
            size = volume(domain(x).shape)
            if size & (size - 1) == 0:  # what tl.arange takes
                cases.append(x)
    texts = [emit(x, "triton", "n", BUFFERS) for x in cases]
    kernels = "".join(KERNEL.format(i=i, text=f"n * 0 + {t}" if "^" not in t else f"n * 0 + ({t})")
                      for i, t in enumerate(texts))  # fmt: skip
    calls = [
        f"(kernel{i}, {volume(domain(x).shape)}, {[g.index for g in buffers(x)]})"
        for i, x in enumerate(cases)
    ]
    script = tmp_path / "offsets.py"
    script.write_text(RUN.format(kernels=kernels, calls=f"[{', '.join(calls)}]"))
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    for x, text, line in zip(cases, texts, done.stdout.splitlines(), strict=True):
        assert list(map(int, line.split())) == expected(x), (str(x), text)


# ---- names, errors -----------------------------------------------------------------------------


@pytest.mark.parametrize("language", ["triton", "cuda"])
def test_names_of_extents_stay(language):
    H, W = lc.symbols("H W")
    tiles = lc.logical_divide(Layout((H, W), (W, 1)), (2, 8))
    expression = emit(tiles, language, ("row", "column")).replace(" / ", " // ")
    for h, w in ((6, 16), (4, 24)):
        now = lc.substitute(tiles, H=h, W=w)
        for row in range(h):
            for column in range(w):
                names = {"H": h, "W": w, "row": row, "column": column}
                assert eval(expression, names) == now(row, column) == row * w + column


def test_no_expression_of_cuda_has_a_comment():
    H, W = lc.symbols("H W")
    halves = Layout(((H + 1) // 2, W % 8 + 1), (W // 2 + H % 3, (H - W) // 2))
    assert "//" not in emit(halves, "cuda")
    names = {"H": 9, "W": 12, "i": 1, "j": 2}
    now = lc.substitute(halves, **{k: names[k] for k in "HW"})
    text = emit(halves, "cuda").replace(" / ", " // ")
    assert eval(text, names) == now(1, 2) == eval(emit(halves, "numpy"), names)


class Triangular(Stride):
    """The first cell of row c of a packed lower triangle."""

    def at(self, c):
        return c * (c + 1) // 2

    def expression(self, c, language):
        return f"{c} * ({c} + 1) {'/' if language == 'cuda' else '//'} 2"


def test_a_class_of_your_own_says_its_expression():
    packed = Layout((4, 3), (Triangular(), 1))
    assert emit(packed, "cuda") == "(i * (i + 1) / 2) + j"
    got = eval(emit(packed, "numpy"), grids(packed.shape))
    assert got.tolist() == [packed(n) for n in range(12)]


def test_what_is_an_expression_itself_is_put_in_parentheses():
    text = emit(Layout((4, 8), (8, 1)), "numpy", ("a + b", "c ^ d"))
    assert eval(text, {"a": 1, "b": 2, "c": 5, "d": 1}) == 3 * 8 + 4


def test_what_has_no_expression_is_refused():
    class Silent(Stride):
        def at(self, c):
            return c * c

    for layout in (Layout(4, Silent()), Layout(4, CustomStride(lambda c: c * c, 2))):
        with pytest.raises(LayoutError, match="has no expression"):
            emit(layout, "cuda")
    for layout in (Layout(8, lc.F2(3)), lc.ComposedLayout(lc.Swizzle(1, 0, 1), 0, Layout(4))):
        with pytest.raises(LayoutError, match="sympy has no bit operations"):
            emit(layout, "sympy")
    two = Layout((2, 2), tuple([CustomStride(IndexedGather(x), 1) for x in ([1, 0], [0, 2])]))
    with pytest.raises(LayoutError, match="more index buffers than the 1 names index"):
        emit(two, "cuda")
    with pytest.raises(LayoutError, match="the languages cuda, triton, numpy, sympy"):
        emit(Layout(4), "fortran")
    for shape in ((4, 2), 4):
        with pytest.raises(LayoutError, match="3 names for the"):
            emit(Layout(shape), "cuda", ("i", "j", "k"))
    for names in (("i", ("j", "k")), (1, "j"), 3):
        with pytest.raises(LayoutError, match="expected names as a str, or one str per mode"):
            emit(Layout((4, 2)), "cuda", names)


@pytest.mark.parametrize("names", [("H", "j"), ("i", "i")])
def test_a_name_stands_for_one_thing(names):
    H = lc.symbols("H")
    with pytest.raises(LayoutError, match="stands for two things"):
        emit(Layout((H, 4), (4, 1)), "cuda", names)


def test_a_mode_of_coordinates_that_is_never_reached_is_zero():
    assert emit(Layout(4, E(1)), "numpy") == "(0, i)"
    assert len(leaves(Layout((2,) * 9).shape)) == 9
    assert emit(Layout((2,) * 9), "numpy").startswith("c0 + c1 * 2")


@pytest.mark.parametrize("value", [2, 3, 5])
def test_a_digit_beyond_an_extent_without_a_value_is_said(value):
    extent = lc.symbols("A")
    behind = lc.ComposedLayout(Layout((extent, 5), (2, 5)), 0, Layout(6))
    expected = [i % value * 2 + i // value * 5 for i in range(6)]
    assert eval(emit(behind, "numpy"), {"A": value, "i": np.arange(6)}).tolist() == expected
    assert [eval(emit(behind, "triton"), {"A": value, "i": i}) for i in range(6)] == expected


def test_axes_of_a_coordinate_that_add_by_xor_are_said():
    pairs = Layout((2, 2), (lc.F2(1), lc.F2(3)))
    behind = lc.composition(Layout((4, 4), (1, 6)), (pairs, 2))
    assert isinstance(behind, lc.ComposedLayout)
    i, j = np.arange(4)[:, None], np.arange(2)
    said = eval(emit(behind, "numpy"), {"i": i, "j": j})
    assert said.tolist() == [[behind(x, y) for y in range(2)] for x in range(4)]
    table = behind(i, j)  # arrays, too, where a stride of 0 stands beside XOR strides
    assert table.tolist() == said.tolist()
    zeros = lc.ComposedLayout(
        Layout((4, 4)), 0, Layout((2, 2), (lc.ScaledBasis(lc.F2(3), (1,)), 0 * E(1)))
    )
    assert zeros(np.arange(4)).tolist() == [zeros(n) for n in range(4)] == [0, 12, 0, 12]


def test_names_of_buffers_are_strings():
    for index in (3, ("rows", 3)):
        with pytest.raises(lc.LayoutTypeError, match=r"`index`: expected a str or a tuple of them"):
            emit(Layout(4), "cuda", index=index)

    def cyclic(c):
        return c % 3

    with pytest.raises(lc.LayoutTypeError, match=r"cyclic\(c\)\*2 has no expression$"):
        emit(Layout(4, CustomStride(cyclic, 2)), "cuda", index=("rows", "columns"))
