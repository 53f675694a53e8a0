"""A CuTe DSL kernel with im2col and tiled tensor maps: right as compiled, and faults are caught."""

from __future__ import annotations

from functools import partial
from itertools import product
from typing import Any

import numpy as np
import pytest

from .. import (
    DataRace,
    Deadlock,
    Fault,
    InFlight,
    Stats,
)
from .planted import Planted, each, run_on

pytest.importorskip("cutlass")

# In w, h, d: taps, near and far padding, strides, dilations.
WINDOWS = {
    "w": ((3,), (1,), (2,), (2,), (1,)),
    "wh": ((3, 2), (2, 0), (1, 1), (1, 2), (2, 1)),
    "whd": ((2, 3, 2), (1, 1, 0), (0, 1, 2), (2, 1, 3), (1, 2, 2)),
}
SHAPES = {"w": (3, 61, 64), "wh": (2, 9, 13, 128), "whd": (2, 6, 7, 5, 64)}


def build(name: str, folder: str) -> Any:
    """The window, the shape of the tensor and the compiled kernel."""
    from .dsl_im2col import Window, compile_im2col

    window = Window(*WINDOWS[name])
    return window, SHAPES[name], compile_im2col(folder, window)


@pytest.fixture(scope="module", params=WINDOWS)
def compiled(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    return build(request.param, str(tmp_path_factory.mktemp("dumps")))


@pytest.fixture(scope="module")
def line(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return build("w", str(tmp_path_factory.mktemp("dumps")))


def im2col(x: np.ndarray, window: Any) -> np.ndarray:
    """The matrix by its definition: rows n z p q, columns t r s c."""
    near, far = (tuple(reversed(p)) for p in (window.near, window.far))
    padded = np.pad(x, [(0, 0), *zip(near, far, strict=True), (0, 0)])
    taps, stride, dilation = (
        tuple(reversed(p)) for p in (window.taps, window.stride, window.dilation)
    )
    columns = []
    for tap in product(*map(range, taps)):
        lines = []
        for mode, (i, s, d, t) in enumerate(zip(tap, stride, dilation, taps, strict=True)):
            last = padded.shape[1 + mode] - (t - 1) * d
            lines.append(slice(i * d, i * d + last, s))
        columns.append(padded[(slice(None), *lines)].reshape(-1, x.shape[-1]))
    return np.concatenate(columns, axis=1)


def run_im2col(compiled: Any, ptx: str, **options: Any) -> tuple[np.ndarray, np.ndarray, Stats]:
    """The matrix as the kernel makes it and as it should be, and what was executed."""
    window, shape, function = compiled
    x = np.random.default_rng(0).standard_normal(shape).astype(np.float16)
    want = im2col(x, window)
    d = np.zeros_like(want)
    return d, want, run_on(function, ptx, {"x": x, "d": d}, **options)


def check(compiled: Any, ptx: str, **options: Any) -> tuple[np.ndarray, Stats]:
    """The matrix, which is as it should be, and what was executed."""
    got, want, stats = run_im2col(compiled, ptx, **options)
    np.testing.assert_array_equal(got, want)
    return got, stats


@pytest.mark.parametrize("options", [{}, {"late": False, "independent": False}], ids=str)
def test_the_matrix_is_that_of_its_definition(compiled: Any, options: dict[str, Any]) -> None:
    got, stats = check(compiled, compiled[2].__ptx__, **options)
    tiles = -(-got.shape[0] // 64) * (got.shape[1] // 64)
    modes = len(compiled[1])
    assert stats.count(f"cp.async.bulk.tensor.{modes}d.shared") == tiles
    assert stats.count("cp.async.bulk.tensor.2d.global") == tiles


PLANTED = [
    ("too many bytes", r"(mov\.b32\s+%r\d+), 8192;", r"\1, 8208;", Deadlock),
    ("a channel too far", r"(im2col[^{]*\{)%r\d+", r"\g<1>64", AssertionError),
    ("the tap left out", r"(im2col.*\], )\{%rs\d+", r"\1{0", AssertionError),
    ("no wait for the load", r"LAB_WAIT:[^;]*;[^;]*;[^;]*;", "", InFlight),
    ("no wait for the store", r"cp\.async\.bulk\.wait_group[^;]*;", "", InFlight),
    ("every thread stores", r"@%p\d+ bra\s+\$L__BB0_\d+;(?=[^@]*bulk_group)", "", DataRace),
    ("a tiled map", r"(\.global)\.im2col(.*\]), \{%rs\d+\}", r"\1.tile\2", Fault),
]


@each(PLANTED)
def test_planted_faults_are_caught(line: Any, planted: Planted) -> None:
    planted.is_caught(line[2].__ptx__, partial(check, line))
