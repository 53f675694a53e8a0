"""Kernels are compiled to be exported and loaded, and to run as they are where they cannot be."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from layoutconv.kernels.common import compiled
from layoutconv.kernels.common.compiled import no_engine
from layoutconv.kernels.compile import store

from ..warm_process import run_python
from .kept_kernels import Kernel, key, loaded_by
from .kept_kernels import compiled as compiled_numbers

COMPILE = """
import hashlib
import tempfile
from pathlib import Path
from layoutconv.kernels.common.compiled import runs_as_compiled
from layoutconv.kernels.maps.output_coords import Unpack
from layoutconv.kernels.maps.per_rank import build

def made():
    with tempfile.TemporaryDirectory() as folder:
        kernel = build(Unpack(2), "sm_80", dump=folder)
        kernel.export_to_c(folder + "/kernel.o", function_name="kernel")
        content = kernel.__ptx__.encode() + Path(folder, "kernel.o").read_bytes()
        return kernel.engine is not None, hashlib.sha256(content).hexdigest()

alone, exported = made()
with runs_as_compiled():
    beside, same = made()
print(alone, beside, exported == same)
"""


def test_on_a_gpu_of_this_machine_no_host_code_is_made_beside_the_object() -> None:
    """Neither the PTX nor the object changes by it."""
    here = {"CUTE_DSL_ARCH": "sm_80"}  # as the DSL says of a machine with such a GPU
    done = run_python(["-c", COMPILE], Path(__file__).parents[2], {**os.environ, **here})
    assert done.stdout.split() == ["False", "True", "True"], done.stderr


def test_a_dsl_without_the_argument_is_given_none() -> None:
    assert no_engine({"module": ..., "no_jit_engine": ...}) == {"no_jit_engine": True}
    assert no_engine({"module": ...}) == {}


def test_what_cannot_be_loaded_is_compiled_to_run_as_it_is(
    kernel_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kept or not, and nothing that is compiled afterwards."""
    runs: list[bool] = []

    def compile() -> Kernel:
        runs.append(compiled._runs.get())
        return Kernel(len(runs))

    def fails(content: bytes) -> None:
        raise RuntimeError("no memory to load it")

    loaded_by(monkeypatch, fails)
    found: Any = store.load(key(1), compile)
    assert (found.number, runs) == (2, [False, True])
    in_the_way(kernel_folder, monkeypatch)
    with pytest.warns(UserWarning, match="cannot be kept"):
        found = store.load(key(2), compile)
    assert (found.number, runs) == (4, 2 * [False, True])
    loaded_by(monkeypatch, lambda content: content[:1])
    compile()
    assert runs[-1] is False


def test_where_nothing_can_be_kept_a_kernel_is_loaded_all_the_same(
    kernel_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is compiled once, and leaves nothing behind."""
    before = len(compiled_numbers)
    loaded_by(monkeypatch, lambda content: content[:1])
    in_the_way(kernel_folder, monkeypatch)
    with pytest.warns(UserWarning, match="cannot be kept"):
        assert store.load(key(3), lambda: Kernel(3)) == bytes([3])
    shared = kernel_folder.parent / "shared"
    shared.mkdir()
    shared.chmod(0o777)
    monkeypatch.setenv("LAYOUTCONV_CACHE_DIR", str(shared))
    with pytest.warns(UserWarning, match="is not used"):
        assert store.load(key(4), lambda: Kernel(4)) == bytes([4])
    assert compiled_numbers[before:] == [3, 4]
    assert not list(shared.iterdir())


def in_the_way(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Put a file in the place of the folder of kernels."""
    file = folder.parent / "file"
    file.touch()
    monkeypatch.setenv("LAYOUTCONV_CACHE_DIR", str(file / "kernels"))
