"""Errors of machines, disks and processes: each says in a sentence what to do, and breaks nothing.

GPUs and drivers are stand-ins. Full disks, signals, processes and the compiler are real.
"""

from __future__ import annotations

import json
import os
import re
import resource
import signal
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import layoutconv as lc
from layoutconv.base import devices
from layoutconv.base.cache_folder import cache_directory
from layoutconv.cli import main
from layoutconv.conv import ConvProblem, fprop_view
from layoutconv.demo import choose_device
from layoutconv.drawing.workers import RequestWorker
from layoutconv.errors import ArgumentError, DeviceError
from layoutconv.gpu import measured_choices
from layoutconv.gpu import plan as gpu_plan
from layoutconv.kernels.compile import store
from layoutconv.planning.kernel_spec import KernelSpec
from layoutconv.planning.tile import TileConfig

from .stand_ins import Clock, Gpu
from .warm_process import run_python

Start = Callable[..., "subprocess.Popen[str]"]
ROOT = Path(__file__).parents[1]
VIEW = fprop_view(ConvProblem((1, 20, 8), (8, 1)))
SPEC = KernelSpec.of(VIEW, "float16", "float16", TileConfig((16, 16, 32), (1, 1), 2), "sm_80")
TUNE = ["tune", "--conv", "2,8,8,16", "--filter", "16,3,3", "--pass", "fprop"]
INTERRUPTED = "layoutconv: interrupted; finished work is kept, run it again to continue"
PREAMBLE = f"""
import os, signal, sys, time
signal.signal(signal.SIGINT, signal.default_int_handler)  # who runs in the background ignores it
from pathlib import Path
sys.path.insert(0, {str(ROOT)!r})
import torch
from layoutconv.gpu import kernel_source, machines
from layoutconv.planning.machine import MACHINES
from layoutconv.tuning import precompile, race
from layoutconv.cli import main
machines.stand_in(MACHINES["sm_90a"])
torch.cuda.is_available = lambda: True
torch.cuda.current_device = lambda: 0
"""
LIGHT = f"""
import os, sys, time
from pathlib import Path
sys.path.insert(0, {str(ROOT)!r})
from layoutconv.base.processes import in_processes
"""


@pytest.fixture
def folder(kernel_folder: Path) -> Path:
    return kernel_folder


def everything(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def one_sentence(capsys: pytest.CaptureFixture[str]) -> str:
    """Return the message of a command that failed: one line on standard error alone."""
    out, error = capsys.readouterr()
    assert out == ""
    assert error.startswith("layoutconv: error: ")
    assert error.count("\n") == 1
    return error


# -- no GPU, or one that runs no kernels ----------------------------------------------------------

NO_GPU: dict[str, tuple[str | None, int | None, str | None, str]] = {
    # CUDA of torch and of the driver, CUDA_VISIBLE_DEVICES; what is to be done
    "a torch without CUDA": (None, 13000, None, "built without CUDA; .* install one that has it"),
    "no driver": ("12.8", None, None, "no NVIDIA driver; install one"),
    "an old driver": (
        "13.0",
        12080,
        None,
        "driver supports CUDA 12.8, but this torch needs 13.0; upd",
    ),
    "hidden": ("12.8", 13000, "-1", "CUDA_VISIBLE_DEVICES is '-1'; unset it"),
    "none": ("12.8", 12080, None, "the driver finds none; nvidia-smi lists"),
}


@pytest.mark.parametrize("trouble", NO_GPU)
def test_without_a_gpu_it_says_why(
    trouble: str,
    monkeypatch: pytest.MonkeyPatch,
    gpu: Gpu,
    capsys: pytest.CaptureFixture[str],
    folder: Path,
) -> None:
    built_for, driver, visible, sentence = NO_GPU[trouble]
    gpu.says(is_available=False, device_count=0)
    gpu.has_driver(driver)
    monkeypatch.setattr(torch.version, "cuda", built_for)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    with pytest.raises(ArgumentError, match=sentence):
        choose_device("cuda")
    with pytest.raises(ArgumentError, match=sentence):
        lc.tune(VIEW, torch.float16)
    for command in TUNE, ["bench", "dense"], ["demo", "--device", "cuda"]:
        assert main(command) == 2
        assert sentence.split(".*")[0] in one_sentence(capsys)
    assert main(["info"]) == 0
    assert sentence.split(".*")[0] in capsys.readouterr().out
    assert choose_device("auto")[0].type == "cpu"
    assert not folder.exists()


@pytest.mark.parametrize(("count", "said"), [(1, "CPU (1 thread)"), (4, "CPU (4 threads)")])
def test_threads_are_counted(count: int, said: str) -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        assert choose_device("cpu")[1] == said
    finally:
        torch.set_num_threads(before)


OLD_GPU = r"compute capability 7\.5 is not supported: kernels are built for 8\.0, .*on the CPU"
NEW_GPU = r"compute capability 13\.0 is not supported: .*\(a newer layoutconv may know it\)"
OLD_DRIVER = (
    r"driver supports CUDA 11\.8, .* CUDA 12\.0: update the driver to 525 or newer; .*on the CPU"
)


@pytest.mark.parametrize(
    ("capability", "driver", "sentence"),
    [((7, 5), 13000, OLD_GPU), ((13, 0), 13000, NEW_GPU), ((9, 0), 11080, OLD_DRIVER)],
    ids=["an old GPU", "a new GPU", "an old driver"],
)
def test_a_gpu_that_runs_no_kernels(
    capability: tuple[int, int],
    driver: int,
    sentence: str,
    gpu: Gpu,
    capsys: pytest.CaptureFixture[str],
    folder: Path,
) -> None:
    major, minor = capability
    found = SimpleNamespace(
        name="a GPU", major=major, minor=minor, multi_processor_count=40, total_memory=1 << 34,
        shared_memory_per_block_optin=1 << 16, shared_memory_per_multiprocessor=1 << 16,
    )  # fmt: skip
    gpu.says(
        is_available=True, device_count=1, current_device=0, get_device_properties=found,
        get_device_capability=capability, get_device_name="a GPU",
    )  # fmt: skip
    gpu.has_driver(driver)
    with pytest.raises(DeviceError, match=sentence):
        gpu_plan.Plan(VIEW, torch.float16, 0)
    assert main(TUNE) == 2
    assert re.search(sentence, one_sentence(capsys))
    if capability < (13, 0):
        assert choose_device("auto")[0].type == "cpu"
        with pytest.raises(ArgumentError, match=r"got a GPU, .*too old; use cpu"):
            choose_device("cuda")
    x, w = torch.randn(1, 3, 8), torch.randn(4, 3, 3)
    torch.testing.assert_close(lc.conv1d(x, w), torch.nn.functional.conv1d(x, w))
    assert not folder.exists()


def test_the_driver_says_which_cuda_it_has(gpu: Gpu) -> None:
    class Driver:
        @staticmethod
        def cuDriverGetVersion(number: Any) -> int:
            number._obj.value = 12040
            return 0

    assert devices.driver_version(lambda name: Driver) == 12040
    assert devices.driver_version(lambda name: object()) is None  # without the function

    def no_library(name: str) -> None:
        raise OSError("libcuda.so.1: cannot open shared object file")

    assert devices.driver_version(no_library) is None
    gpu.has_driver(None)
    devices.check_driver()  # kernels compile without one


# -- a cache that cannot be written ---------------------------------------------------------------


class Kernel:
    """A stand-in for a compiled kernel, with what the store needs."""

    def __call__(self) -> str:
        return "ran"

    def export_to_c(self, path: str, function_name: str) -> None:
        Path(path).write_bytes(bytes(1000))


@contextmanager
def no_more_than(size: int) -> Iterator[None]:
    """No file of this process gets longer: writing fails in its middle, as on a full disk.

    Python leaves half of the bytecode of what it imports meanwhile, and later reads it: so none.
    """
    old, bytecode = resource.getrlimit(resource.RLIMIT_FSIZE), sys.dont_write_bytecode
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, old[1]))
    sys.dont_write_bytecode = True
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, old)
        sys.dont_write_bytecode = bytecode


@pytest.mark.parametrize("home", ["read-only", "none"])
def test_a_home_that_cannot_be_written(
    home: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], folder: Path
) -> None:
    for name in ("LAYOUTCONV_CACHE_DIR", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    if home == "read-only":
        monkeypatch.setenv("HOME", "/proc")  # in which nobody makes a folder, root neither
    else:

        def no_home() -> None:
            raise RuntimeError("Could not determine home directory.")

        monkeypatch.setattr(Path, "home", no_home)
        assert cache_directory() == Path("/.cache/layoutconv")
        monkeypatch.setenv("XDG_CACHE_HOME", "/proc/.cache")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default")
        for number in range(3):
            assert store.load(("trouble", number), Kernel)() == "ran"
    [warning] = caught  # once, not for every kernel
    assert "LAYOUTCONV_CACHE_DIR names a folder with room" in str(warning.message)
    for command in ["info"], ["cache", "list"], ["cache", "clear"]:
        assert main(command) == 0
        assert "/proc/.cache/layoutconv" in capsys.readouterr().out or command[1:] == ["list"]


def test_a_disk_that_fills_up_while_a_kernel_is_kept(folder: Path) -> None:
    """A real kernel of 27 kB and room for 10; with more room it is kept."""
    with no_more_than(10_000), pytest.warns(UserWarning, match="File too large; .* with room"):
        assert callable(store.load_kernel(VIEW, SPEC))
    assert everything(folder) == []
    store.unload()
    assert callable(store.load_kernel(VIEW, SPEC))
    assert store.is_kept(VIEW, SPEC)


def test_a_disk_that_fills_up_while_a_choice_is_kept(folder: Path, clock: Clock) -> None:
    with (
        no_more_than(10),
        pytest.warns(
            UserWarning, match="choice cannot be kept, and will be measured again: .* with room"
        ),
    ):
        tuned = lc.tune(VIEW, torch.float16, device=0, measure=lambda plan: 1.0)
    assert tuned.choice.microseconds == 1.0
    assert everything(folder) == []


def test_a_disk_that_fills_up_while_a_picture_is_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with no_more_than(100):
        assert main(["draw", "(4,8):(8,1)", "-o", str(tmp_path / "a.svg")]) == 2
    assert "File too large" in one_sentence(capsys)


@pytest.mark.parametrize("kept", [True, False])
def test_a_worker_leaves_bytecode_where_its_parent_does(
    kept: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else it left half of a file behind while the disk above was full, which Python reads."""
    monkeypatch.setattr(sys, "dont_write_bytecode", not kept)
    worker = RequestWorker(1 << 30)
    try:
        assert ("-B" in worker._process.args) is not kept
    finally:
        worker.close()


# -- Ctrl-C, and two at once ----------------------------------------------------------------------


@pytest.fixture
def start(folder: Path, tmp_path: Path) -> Iterator[Start]:
    """Starts scripts, each in a group of processes of its own, as a shell does."""
    running: list[subprocess.Popen[str]] = []

    def begin(code: str, preamble: str = PREAMBLE) -> subprocess.Popen[str]:
        script = tmp_path / f"script{len(running)}.py"
        script.write_text(preamble + code)
        pipes: Any = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        process = subprocess.Popen([sys.executable, str(script)], start_new_session=True, **pipes)
        running.append(process)
        return process

    yield begin
    for process in running:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def alive(group: int) -> bool:
    """Return whether a process of a group is left."""
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


def until(true: Callable[[], bool], seconds: float = 60) -> None:
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, "nothing happened"
        time.sleep(0.02)


def test_ctrl_c_in_the_middle_of_a_compile(start: Start, folder: Path) -> None:
    """At several moments of it. Then the same process compiles, and keeps, what was broken off."""
    process = start(f"""
import tests.test_error_messages as here
from layoutconv.kernels.compile import store
import cutlass, tvm_ffi
signal.signal(signal.SIGALRM, lambda *_: os.kill(os.getpid(), signal.SIGINT))
broken = 0
for delay in (0.01, 0.1, 0.3, 0.6):
    signal.setitimer(signal.ITIMER_REAL, delay)
    try:
        store.load_kernel(here.VIEW, here.SPEC)
        signal.setitimer(signal.ITIMER_REAL, 0)  # it may come up to here
    except KeyboardInterrupt:
        broken += 1
        left = [path.name for path in Path({str(folder)!r}).glob("*")]
        assert not [name for name in left if name.startswith("tmp")], left
store.load_kernel(here.VIEW, here.SPEC)
assert store.is_kept(here.VIEW, here.SPEC)
print(broken)
""")
    out, error = process.communicate(timeout=120)
    assert process.returncode == 0, error
    assert int(out.split()[-1]) >= 1
    assert [Path(name).suffix for name in everything(folder)] == [".o"]


def test_ctrl_c_in_the_middle_of_a_tune(start: Start, folder: Path) -> None:
    """Compiling in two processes, for a race that would take a minute."""
    process = start(f"""
race._on_gpu = lambda *of: lambda plan: 1.0
if __name__ == "__main__":
    sys.exit(main({[*TUNE, "--processes", "2"]!r}))
""")
    until(lambda: bool(list(folder.glob("*.o"))) or process.poll() is not None)
    os.killpg(process.pid, signal.SIGINT)
    out, error = process.communicate(timeout=120)
    assert process.returncode == 130, error
    assert out == ""
    assert error.strip() == INTERRUPTED
    until(lambda: not alive(process.pid), 20)  # multiprocessing's own helper ends a moment later
    kept = everything(folder)
    assert kept
    assert [name for name in kept if name.startswith("tmp")] == []
    assert all(store._content(folder / name) is not None for name in kept)


def test_processes_end_with_a_caller_that_is_killed(start: Start, tmp_path: Path) -> None:
    process = start(
        f"""
if __name__ == "__main__":
    in_processes(Path.touch, [Path({str(tmp_path / "begun")!r}), Path(os.devnull)], 2)
    in_processes(time.sleep, [60, 60], 2)
""",
        LIGHT,
    )
    until((tmp_path / "begun").exists)
    time.sleep(1.0)  # for the processes to have started
    process.kill()
    process.wait()
    until(lambda: not alive(process.pid), 20)


def test_two_processes_that_tune_at_once(folder: Path, tmp_path: Path) -> None:
    """Both write the same choices over and over; who reads meanwhile finds a whole one."""
    code = f"""
kernel_source.take_from(lambda view, spec: spec)
precompile.compile_kernels = lambda *args: None
race._on_gpu = lambda *of: lambda plan: 1.0
if __name__ == "__main__":
    for _ in range(20):
        assert main({TUNE!r}) == 0
"""
    script = tmp_path / "script.py"
    script.write_text(PREAMBLE + code)
    seen = 0
    with ThreadPoolExecutor(2) as pool:
        both = [pool.submit(run_python, [str(script)]) for _ in range(2)]
        while not all(process.done() for process in both):
            for path in folder.glob("tuned/*/*/*.json"):
                assert json.loads(path.read_text())["microseconds"] == 1.0
                seen += 1
            time.sleep(0.002)
    for process in both:
        assert process.result().returncode == 0, process.result().stderr
    assert seen
    assert len(list(measured_choices.kept())) == len(everything(folder)) == 1


def test_nothing_of_this_is_left(folder: Path) -> None:
    """Leftovers of processes that were killed are cleared, when they are old."""
    folder.mkdir()
    old = folder / "tmp123-abc.o"
    old.write_bytes(b"half a kernel")
    assert main(["cache", "clear"]) == 0
    assert old.exists()  # it may be being written
    os.utime(old, (0, 0))
    assert main(["cache", "clear"]) == 0
    assert not old.exists()
