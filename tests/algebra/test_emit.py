"""Index expressions, run in the languages that they are of."""

from __future__ import annotations

import random
import shutil
import subprocess

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import layoutconv.algebra as lc
from layoutconv.algebra import Layout, LayoutError, emit
from layoutconv.testing.oracle import split, table, value, volume
from layoutconv.testing.random_layouts import operand
from layoutconv.testing.strategies import layouts

NAMES = "ijkl"


def grids(shape):
    """The coordinates of a shape, an array for each mode."""
    modes = tuple(map(volume, shape)) if isinstance(shape, tuple) else (volume(shape),)
    crds = [split(n, modes) for n in range(volume(shape))]
    return dict(zip(NAMES, np.array(crds, dtype=np.int64).T, strict=False)) if crds[0] else {}


@settings(deadline=None)
@given(layouts(max_rank=4), st.sampled_from(["numpy", "triton"]))
def test_python_expressions(layout, language):
    got = eval(emit(layout, language), grids(layout.shape))
    assert np.broadcast_to(got, layout.size()).tolist() == table(layout)
    linear = eval(emit(layout, language, "n"), {"n": np.arange(layout.size())})
    assert np.broadcast_to(linear, layout.size()).tolist() == table(layout)


@pytest.mark.parametrize("kind", ["swizzled", "offset", "tensor"])
def test_expressions_of_composed_layouts(kind):
    for seed in range(60):
        x = operand(random.Random(seed), kind, "int")
        f = x.layout if kind == "tensor" else x
        got = eval(emit(x, "numpy"), grids(f.shape))
        assert np.broadcast_to(got, lc.size(f)).tolist() == table(f)


@settings(deadline=None, max_examples=20)
@given(layouts(max_rank=3, max_size=24))
def test_sympy_expressions(layout):
    sympy = pytest.importorskip("sympy")
    expression = sympy.sympify(emit(layout, "sympy", "n"))
    n = sympy.Symbol("n")
    assert [expression.subs(n, i) for i in range(layout.size())] == table(layout)


def test_cuda_expressions(tmp_path):
    compiler = shutil.which("c++") or shutil.which("g++") or shutil.which("clang++")
    if compiler is None:
        pytest.skip("there is no compiler of C++")
    rng = random.Random(0)
    cases = [operand(rng, kind, "int") for kind in ("layout", "swizzled") for _ in range(30)]
    lines = [
        f'for (long n = 0; n < {lc.size(x)}; ++n) printf("%ld ", (long)({emit(x, "cuda", "n")}));'
        ' puts("");'
        for x in cases
    ]
    source = tmp_path / "offsets.cpp"
    source.write_text("#include <cstdio>\nint main() {\n" + "\n".join(lines) + "\n}\n")
    subprocess.run([compiler, "-O0", str(source), "-o", str(tmp_path / "offsets")], check=True)
    printed = subprocess.run(
        [str(tmp_path / "offsets")], check=True, capture_output=True, text=True
    )
    for x, line in zip(cases, printed.stdout.splitlines(), strict=True):
        if all(value(x.inner, i) >= 0 for i in range(lc.size(x))) if hasattr(x, "inner") else True:
            assert list(map(int, line.split())) == table(x)


def test_names_of_extents_stay():
    H, W = lc.symbols("H W")
    tiles = lc.logical_divide(Layout((H, W), (W, 1)), (2, 8))
    expression = emit(tiles, "triton", ("row", "column"))
    for h, w in ((6, 16), (4, 24)):
        now = lc.substitute(tiles, H=h, W=w) if hasattr(lc, "substitute") else tiles
        for row in range(h):
            for column in range(w):
                names = {"H": h, "W": w, "row": row, "column": column}
                assert eval(expression, names) == now(row, column) == row * w + column


def test_what_has_no_expression_is_refused():
    gather = Layout(4, lc.CustomStride(lc.IndexedGather([3, 1, 2, 0]), 1))
    for layout in (gather, Layout(4, lc.E(0)), Layout(8, lc.F2(3))):
        with pytest.raises(LayoutError, match="emit"):
            emit(layout, "cuda")
    with pytest.raises(LayoutError, match="there are cuda, triton, numpy, sympy"):
        emit(Layout(4), "fortran")
    with pytest.raises(LayoutError, match="1 names for the 2 modes"):
        emit(Layout((4, 2)), "cuda", ("i",))
