"""Kernels that are kept: loaded, not compiled; replaced when damaged; told apart by their key."""

from __future__ import annotations

import ast
import hashlib
import os
import shutil
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import cutlass  # noqa: F401  what is timed here does not include its import
import pytest
import torch

from layoutconv.conv import ConvProblem, fprop_view, gather_fprop_view
from layoutconv.kernels.compile import store, toolchains
from layoutconv.kernels.compile.store import KernelKey, architecture, cache_directory, load_kernel
from layoutconv.planning.kernel_key import runtime_integers, signature
from layoutconv.planning.kernel_spec import KernelSpec
from layoutconv.planning.tile import TileConfig
from layoutconv.sparse import kernel_map_view
from layoutconv.view.gemm_view import GemmView
from tools.ptx_sim import DeviceTensor, HostLaunch, host

from ..warm_process import run_python
from .kept_kernels import loaded_by
from .launcher import compiled_view, storage
from .tiles import retiled

ROOT = Path(__file__).parents[2]
TILE = TileConfig((16, 16, 32), (1, 1), 2)
VIEW = fprop_view(ConvProblem((1, 20, 8), (8, 1)))
SPEC = KernelSpec.of(VIEW, "float16", "float16", TILE, "sm_80")
ARGUMENTS = VIEW, SPEC


@pytest.fixture
def folder(kernel_folder: Path) -> Path:
    return kernel_folder


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache that has the kernel; not to be changed."""
    path = tmp_path_factory.mktemp("kept")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LAYOUTCONV_CACHE_DIR", str(path))
        store.unload()
        load_kernel(*ARGUMENTS)
    return path


def files(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def digest() -> str:
    return KernelKey(signature(VIEW), SPEC).digest


# -- keeping and loading --------------------------------------------------------------------------


def test_a_kernel_is_one_file_under_its_digest_with_nothing_left_over(kept: Path) -> None:
    assert files(kept) == [f"{digest()}.o"]


def test_a_kept_kernel_loads_in_milliseconds(
    kept: Path, folder: Path, compilations: list[Any]
) -> None:
    shutil.copytree(kept, folder)
    seconds = []
    for _ in range(5):
        store.unload()
        start = time.perf_counter()
        load_kernel(*ARGUMENTS)
        seconds.append(time.perf_counter() - start)
    assert min(seconds) < 0.1, seconds
    start = time.perf_counter()
    load_kernel(*ARGUMENTS)
    assert time.perf_counter() - start < 0.02  # from memory
    assert compilations == []


def launch_of_loaded(kernel: Callable[..., None]) -> HostLaunch:
    """The launch that a kernel from the store asks for."""
    import tvm_ffi

    out = DeviceTensor(3 << 20, storage(VIEW.d), "float16")
    program = compiled_view(VIEW, torch.float16, TILE).program
    launches: list[HostLaunch] = []
    with host._pretend_device(program, launches):
        ready = 1 << 20, 2 << 20, tvm_ffi.from_dlpack(out)
        integers = (1, 0, *runtime_integers(VIEW).values())
        kernel(*ready, None, None, None, integers, None, None, None, None)
    (launch,) = launches
    return launch


def test_a_kept_kernel_launches_what_the_compiled_one_does(
    folder: Path, compilations: list[Any]
) -> None:
    first = launch_of_loaded(load_kernel(*ARGUMENTS))
    store.unload()
    second = launch_of_loaded(load_kernel(*ARGUMENTS))
    assert len(compilations) == 1
    assert (second.grid, second.block, second.shared_bytes) == (
        first.grid, first.block, first.shared_bytes
    )  # fmt: skip
    pointers = [int.from_bytes(argument, "little") for argument in second.arguments[:3]]
    assert pointers == [1 << 20, 2 << 20, 3 << 20]
    assert (first.grid, first.block) == ((2, 1, 1), (32, 1, 1))
    assert first.shared_bytes == TILE.smem_bytes(2, 2)


def test_threads_compile_a_kernel_once(folder: Path, compilations: list[Any]) -> None:
    with ThreadPoolExecutor(4) as pool:
        kernels = list(pool.map(lambda _: load_kernel(*ARGUMENTS), range(4)))
    assert len(compilations) == 1
    assert all(kernel is kernels[0] for kernel in kernels)


# -- what can be wrong with the folder ------------------------------------------------------------

DAMAGE: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda content: b"",
    "truncated": lambda content: content[:-1],
    "half": lambda content: content[: len(content) // 2],
    "a flipped bit": lambda content: content[:99] + bytes([content[99] ^ 1]) + content[100:],
    "another file": lambda content: b"not a kernel" * 1000,
}


@pytest.mark.parametrize("how", DAMAGE)
def test_a_damaged_file_is_replaced(
    how: str, kept: Path, folder: Path, compilations: list[Any]
) -> None:
    shutil.copytree(kept, folder)
    (path,) = folder.iterdir()
    path.write_bytes(DAMAGE[how](path.read_bytes()))
    load_kernel(*ARGUMENTS)
    assert len(compilations) == 1
    store.unload()
    assert launch_of_loaded(load_kernel(*ARGUMENTS)).grid == (2, 1, 1)
    assert len(compilations) == 1
    assert files(folder) == [path.name]


def test_a_folder_that_cannot_be_made_is_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("LAYOUTCONV_CACHE_DIR", str(tmp_path / "file" / "kernels"))
    store.unload()
    with pytest.warns(UserWarning, match=r"cannot be kept in .*file/kernels"):
        assert callable(load_kernel(*ARGUMENTS))


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_that_cannot_be_written_is_a_warning(folder: Path) -> None:
    folder.mkdir(mode=0o500)
    with pytest.warns(UserWarning, match="cannot be kept"):
        assert callable(load_kernel(*ARGUMENTS))
    assert files(folder) == []


def test_nothing_is_left_over_where_writing_fails(folder: Path) -> None:
    class Full:
        def export_to_c(self, path: str, function_name: str) -> None:
            Path(path).write_bytes(b"half a ker")
            raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match="No space left"):
        store._keep(Full(), folder / "kernel.o", {})
    assert files(folder) == []


# -- processes ------------------------------------------------------------------------------------

LOAD = f"""
import sys, time
sys.path.insert(0, {str(ROOT)!r})
import torch, tvm_ffi
import cutlass
from layoutconv.conv import ConvProblem, fprop_view
from layoutconv.kernels.compile import build
from layoutconv.planning.kernel_spec import KernelSpec
from layoutconv.kernels.compile.store import load_kernel
from layoutconv.planning.tile import TileConfig
view = fprop_view(ConvProblem((9, 55, 8), (8, 1)))  # of another size than here
compiled = []
original = build.build
build.build = lambda *a: compiled.append(a) or original(*a)
start = time.perf_counter()
spec = KernelSpec.of(view, "float16", "float16", {TILE!r}, "sm_80")
assert callable(load_kernel(view, spec))
print(len(compiled), time.perf_counter() - start)
"""


@pytest.fixture
def processes(folder: Path) -> Callable[[int], list[tuple[int, float]]]:
    """Starts processes that load the kernel: how often did each compile, and how long it took."""

    def start(count: int) -> list[tuple[int, float]]:
        with ThreadPoolExecutor(count) as pool:
            running = list(pool.map(run_python, [["-c", LOAD]] * count))
        results = []
        for process in running:
            assert process.returncode == 0, process.stderr
            compiled, seconds = process.stdout.split()[-2:]
            results.append((int(compiled), float(seconds)))
        return results

    return start


def test_another_process_compiles_nothing(kept: Path, folder: Path, processes: Any) -> None:
    shutil.copytree(kept, folder)
    ((compiled, seconds),) = processes(1)
    assert compiled == 0
    assert seconds < 0.5
    assert files(folder) == files(kept)


def test_processes_that_compile_at_once_leave_one_intact_file(
    folder: Path, processes: Any, compilations: list[Any]
) -> None:
    processes(2)
    assert files(folder) == [f"{digest()}.o"]
    assert launch_of_loaded(load_kernel(*ARGUMENTS)).grid == (2, 1, 1)
    assert compilations == []


# -- the key --------------------------------------------------------------------------------------


def key(**changes: Any) -> KernelKey:
    return KernelKey(signature(VIEW), replace(SPEC, **changes))


def test_the_key_has_all_of_the_spec() -> None:
    keys = [
        key(),
        key(dtype="bfloat16"),
        key(out_dtype="float32"),
        key(tile=retiled(TILE, m=32)),
        key(tile=retiled(TILE, n=32)),
        key(tile=retiled(TILE, k=64)),
        key(tile=retiled(TILE, m=32, warps_m=2)),
        key(tile=replace(TILE, stages=3)),
        key(arch="sm_86"),
        *(key(vectors=(a, b, d)) for a, b, d in ((4, 8, 8), (8, 4, 8), (8, 8, 4))),
        *(key(along=along) for along in ((0, 1), (1, 0))),
        *(key(epilogue=words) for words in ("relu", "bias:float16", "bias:float32")),
        *(key(split=split) for split in ("partial", "atomic")),
    ]
    assert len({k.digest for k in keys}) == len(keys)


def test_the_key_has_the_versions() -> None:
    files = toolchains.sources(*toolchains.HERE)
    assert toolchains.toolchain_of(files, version) == toolchains.compiled_with()[0]
    for package in ("nvidia-cutlass-dsl", "nvidia-cutlass-dsl-libs-cu13", "apache-tvm-ffi"):
        changed = toolchains.toolchain_of(files, lambda p, q=package: "1" + "1" * (p == q))
        assert toolchains.toolchain_of(files, lambda p: "1") != changed


def test_the_key_has_every_source(tmp_path: Path) -> None:
    """One file of each folder, and each that is alone, in a copy of the package."""
    copy = tmp_path / "layoutconv", tmp_path / "kernels"

    def toolchain() -> str:
        return toolchains.toolchain_of(toolchains.sources(*copy), version)

    before = toolchains.compiled_with()[0]
    ignored = shutil.ignore_patterns("__pycache__")
    for folder in ("kernels", "layoutconv"):
        shutil.copytree(ROOT / folder, tmp_path / folder, ignore=ignored)
    assert toolchain() == before
    edited = {str(Path(name).parent) + Path(name).name * (len(Path(name).parts) == 1): path
              for name, path in toolchains.sources(*copy)}  # fmt: skip
    assert {"kernels/gemm", "algebra", "planning", "view"} <= edited.keys()
    (tmp_path / "kernels" / "wing").mkdir()
    (tmp_path / "kernels" / "wing" / "new.py").write_text("")
    seen = {before, toolchain()}
    for path in (*edited.values(), tmp_path / "kernels" / "wing" / "new.py"):
        path.write_text(path.read_text() + "\n")
        seen.add(toolchain())
    assert len(seen) == 2 + len(edited) + 1


def test_the_sources_are_all_that_kernels_import() -> None:
    """Following imports, from the kernels and from what they import."""
    known = {path.resolve() for _, path in toolchains.sources(*toolchains.HERE)}
    package = ROOT / "layoutconv"

    def imported(path: Path) -> Iterator[Path]:
        here = path.parent
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                base = node.module or ""
                if node.level:
                    folder = here if node.level == 1 else here.parents[node.level - 2]
                    home = folder.relative_to(ROOT).parts
                    base = ".".join((*home, *base.split(".")) if base else home)
                names = [base, *(f"{base}.{alias.name}" for alias in node.names)]
            else:
                continue
            for name in names:
                parts = name.replace("layoutconv.kernels", "kernels").split(".")
                if parts[0] in ("layoutconv", "kernels"):
                    there = ROOT.joinpath(*parts)
                    yield from (f for f in (there.with_suffix(".py"), there / "__init__.py")
                                if f.is_file())  # fmt: skip

    # The package itself only says where things are, and drawing and torch are asked for later.
    waiting, reached = sorted(known), set()
    while waiting:
        path = waiting.pop()
        if path not in reached and path != package / "__init__.py":
            reached.add(path)
            waiting += imported(path)
    later = {path for path in reached - known if path.is_relative_to(package / "drawing")}
    assert reached - later == known


INDEX = torch.zeros(4096, dtype=torch.int32)


def dense(N: int, size: int, C: int = 16, K: int = 8, taps: int = 3, **more: Any) -> GemmView:
    return fprop_view(ConvProblem((N, size, size + 1, C), (K, taps, 3), **more))


def grid(N: int, size: int, rows: int, C: int = 16) -> GemmView:
    problem = ConvProblem((N, size, size, C), (8, 3, 3), padding=1)
    index = INDEX[: N * size * size]
    return gather_fprop_view(problem, index, index, in_rows=rows, out_rows=rows + 1)


def neighbours(m: int, rows: int, taps: int = 3, C: int = 16) -> GemmView:
    return kernel_map_view(
        INDEX[: m * taps].view(taps, m).T, C, 8, kernel_size=(taps,), in_rows=rows
    )


SAME = {
    "dense": [dense(1, 5), dense(7, 30), dense(0, 5), dense(1, 100)],
    "grid": [grid(1, 5, 25), grid(3, 7, 9), grid(1, 1, 0)],
    "neighbours": [neighbours(1, 1), neighbours(50, 3), neighbours(51, 2**20)],
}
DIFFERENT = [
    dense(1, 5),
    dense(1, 5, C=32),
    dense(1, 5, K=16),
    dense(1, 5, taps=2),
    dense(1, 5, padding=1),
    dense(1, 5, padding=((0, 1), 0)),
    dense(1, 5, stride=2),
    dense(1, 5, dilation=2),
    fprop_view(ConvProblem((1, 5, 16), (8, 3))),
    fprop_view(ConvProblem((1, 5, 5, 5, 16), (8, 3, 3, 3))),
    grid(1, 5, 25),
    grid(1, 5, 25, C=32),
    gather_fprop_view(ConvProblem((1, 5, 6, 16), (8, 3, 3)), INDEX[:30]),
    gather_fprop_view(ConvProblem((1, 5, 6, 16), (8, 3, 3)), None, INDEX[:12]),
    neighbours(5, 5),
    neighbours(5, 5, taps=2),
    kernel_map_view(INDEX[:15].view(5, 3), 16, 8, kernel_size=(3,)),
    kernel_map_view(INDEX[:15].view(3, 5).T, 16, 8, kernel_size=(3,), scatter_index=INDEX[:5]),
]


@pytest.mark.parametrize("kind", SAME)
def test_image_count_and_sizes_are_not_in_the_key(kind: str) -> None:
    assert len({signature(view) for view in SAME[kind]}) == 1


def test_the_structure_of_a_view_is_in_the_key() -> None:
    # The far side of padding only changes an extent, which is an argument.
    signatures = [signature(view) for view in DIFFERENT]
    assert signatures[5] == signatures[0]
    del signatures[5]
    assert len(set(signatures)) == len(signatures)


# -- where, and for what --------------------------------------------------------------------------


def test_where_kernels_are_kept(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("LAYOUTCONV_CACHE_DIR", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    assert cache_directory() == tmp_path / ".cache" / "layoutconv"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert cache_directory() == tmp_path / "xdg" / "layoutconv"
    monkeypatch.setenv("LAYOUTCONV_CACHE_DIR", str(tmp_path / "mine"))
    assert cache_directory() == tmp_path / "mine"


def test_a_kept_file_ends_with_a_digest_of_its_key_and_of_itself(kept: Path) -> None:
    content = next(kept.iterdir()).read_bytes()
    whole = f"{digest()}\n".encode() + content[:-32]
    assert content[-32:] == hashlib.sha256(whole).digest()


def test_a_kept_file_says_what_it_is(
    kept: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = store.note(next(kept.iterdir()))
    assert found == {
        "kernel": "implicit_gemm",
        "arch": "sm_80",
        "what": "float16 -> float16, 16x16x32, A [[Q,N],[8,1]]:[[1@1,1@0],[1@2,1@1]]+[0,0,0]",
        "view": signature(VIEW),
    }
    folder.mkdir()
    notes = b"", b"{", b"[" * 100_000, b"1", b'{"kernel": 1}'
    ends = [note + len(note).to_bytes(4, "little") + b"note" for note in notes]
    for at, content in enumerate((b"", b"object", b"note", b"\xff\xff\xff\xffnote", *ends)):
        path = folder / f"{at}.o"
        path.write_bytes(content + store._seal(path, content))
        assert store._content(path) == content
        assert store.note(path) is None
    (folder / "damaged").write_bytes(next(kept.iterdir()).read_bytes()[:-1])
    assert store.note(folder / "damaged") is None
    assert store.note(folder / "missing") is None


def test_kernels_of_other_kinds_say_what_they_are(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Object:
        def export_to_c(self, path: str, function_name: str) -> None:
            Path(path).write_bytes(b"object")

    loaded_by(monkeypatch, lambda content: content)

    def noted(key: Any) -> dict[str, str] | None:
        store.load(key, Object)
        return store.note(folder / f"{store._digest(key)}.o")

    what = "('max', 27)"
    assert noted(("gather", ("max", 27), "sm_90a")) == {
        "kernel": "gather", "arch": "sm_90a", "what": what
    }  # fmt: skip
    what = "('keys', 3), ('box', 2)"
    assert noted((("keys", 3), ("box", 2), "sm_90a")) == {
        "kernel": "keys", "arch": "sm_90a", "what": what
    }  # fmt: skip
    assert noted("alone") == {"kernel": "alone", "arch": "", "what": ""}


def test_a_gpu_that_no_kernel_is_built_for() -> None:
    assert architecture((9, 0)) == "sm_90a"
    with pytest.raises(RuntimeError, match=r"capability 7\.5 is not supported.* 8\.0, 8\.6"):
        architecture((7, 5))
