"""A dry run: the kernels that a call would launch are compiled first, and launched afterwards."""

from __future__ import annotations

import gc
import os
import pickle
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable
from concurrent.futures.process import BrokenProcessPool
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import layoutconv as lc
import layoutconv.compat.spconv.pytorch as spconv
from layoutconv.base.forked_call import call_in_fork, can_fork
from layoutconv.base.processes import Workers
from layoutconv.conv import ConvProblem, fprop_view, wgrad_view
from layoutconv.conv.packed_channels import LinePacking
from layoutconv.errors import ArgumentError, ArgumentTypeError
from layoutconv.gpu import dry_run
from layoutconv.gpu import plan as gpu_plan
from layoutconv.gpu.kernel_source import DeferredKernel, source
from layoutconv.gpu.launch import BoundLaunch
from layoutconv.gpu.line_packing import pack_lines
from layoutconv.kernels.compile import store
from layoutconv.ops.execute import execute_cpu
from layoutconv.planning.kernel_key import signature
from layoutconv.sparse.views import kernel_map_view
from layoutconv.tensors import expected_tensors
from layoutconv.tuning import precompile
from layoutconv.tuning.precompile import _look_in_fork
from layoutconv.view.gemm_view import GemmView

from ..executors.addresses import tensor_at
from ..kernels.kept_kernels import Kernel
from ..stand_ins import Gpu
from ..warm_process import run_python

ROOT = Path(__file__).parents[2]
PROBLEM = ConvProblem((1, 6, 6, 16), (16, 3, 3), padding=1)
VIEW = fprop_view(PROBLEM)
_RANDOM = torch.Generator().manual_seed(0)
X, W = (  # integers, whose sums are the same in any order
    torch.randint(-4, 5, shape, generator=_RANDOM).float()
    for shape in ((1, 6, 6, 16), (16, 3, 3, 16))
)


@pytest.fixture
def compile_by(monkeypatch: pytest.MonkeyPatch) -> Callable[[Any], None]:
    """A function: others take the place of the processes that compile."""
    return partial(monkeypatch.setattr, precompile, "Workers")


@pytest.fixture
def load_by(monkeypatch: pytest.MonkeyPatch) -> Callable[[Any], None]:
    """A function: another one loads kernels behind a dry call."""
    return partial(monkeypatch.setattr, dry_run, "load_kernel")


@pytest.fixture(autouse=True)
def asked(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    gpu: Gpu,
    compile_by: Callable[[Any], None],
    load_by: Callable[[Any], None],
) -> list[list[Any]]:
    """Kernels that compute on the CPU; what processes are asked to compile, call by call."""
    calls: list[list[Any]] = []
    monkeypatch.setenv("LAYOUTCONV_CACHE_DIR", str(tmp_path))
    monkeypatch.delenv("LAYOUTCONV_TUNE", raising=False)
    gpu.like("sm_90a")
    gpu.says(current_device=-1)
    load_by(on_cpu)
    compile_by(partial(Recorded, calls))
    return calls


class Recorded(Workers[Any]):
    """Processes that do not start: what is asked of them, if anything is."""

    def __init__(self, calls: list[list[Any]], function: Any, processes: int, **more: Any) -> None:
        super().__init__(function, processes, **more)
        self._calls, self._items = calls, list[Any]()

    def add(self, item: Any, weight: float = 0.0) -> None:
        if not self._items:
            self._calls.append(self._items)
        self._items.append(item)
        self._errors.append(None)
        assert weight > 0


def on_cpu(view: GemmView, spec: Any) -> Any:
    want = expected_tensors.expected(view)

    def kernel(a: int, b: int, d: Tensor, *rest: Any) -> None:
        x, w = (
            tensor_at(t, torch.float32, s.shape, s.stride) for t, s in ((a, want.a), (b, want.b))
        )
        execute_cpu(view, x, w, d)

    return kernel


def run(view: GemmView, x: Tensor = X, w: Tensor = W) -> Tensor:
    out = torch.full((1, 6, 6, 16), torch.nan)
    return gpu_plan.execute_gpu(view, x, w, out, precision="tf32")


def both(view: GemmView, other: GemmView) -> tuple[Tensor, Tensor]:
    y = run(view)
    assert not run(view, y.reshape(1, 6, 6, 16)).any()
    dw = torch.full((16, 3, 3, 16), torch.nan)
    return y, gpu_plan.execute_gpu(other, torch.ones_like(y), X, dw, precision="tf32")


def test_a_dry_call_meets_zeros_and_the_next_one_does_not(asked: list[list[Any]]) -> None:
    view, other = replace(VIEW), replace(wgrad_view(PROBLEM))
    seen: list[tuple[Tensor, Tensor]] = []
    count = lc.precompile(lambda: seen.append(both(view, other)), processes=3)
    assert not any(t.any() for t in seen[0])
    assert [len(items) for items in asked] == [2] == [count]  # each kernel once
    torch.testing.assert_close(run(view), execute_cpu(VIEW, X, W, torch.empty(1, 6, 6, 16)))


def test_what_is_on_disk_is_not_asked_for(asked: list[list[Any]], tmp_path: Path) -> None:
    assert lc.precompile(run, replace(VIEW)) == 1
    ((request,),) = asked
    view, spec = pickle.loads(request)
    key = store.KernelKey(signature(view, spec.along, spec.epilogue), spec)
    store._keep(Kernel(1), store._path(tmp_path, store._digest(key)), {})
    assert lc.precompile(run, replace(VIEW)) == 0
    assert len(asked) == 1


def test_a_call_that_fails_leaves_kernels_as_they_were() -> None:
    load = source()

    def fails() -> None:
        run(replace(VIEW))
        raise KeyError("a mistake of the caller")

    with pytest.raises(KeyError):
        lc.precompile(fails)
    assert source() is load


def test_a_race_compiles_by_itself(asked: list[list[Any]], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LAYOUTCONV_TUNE", "1")
    assert lc.precompile(lambda: pytest.fail("called")) == 0


def test_launches_after_a_dry_call_are_of_kernels_alone(load_by: Callable[[Any], None]) -> None:
    """No launch that is bound afterwards goes through the stand-in, which is a call of Python."""

    def kernel(a: int, b: int, d: Tensor, *rest: Any) -> None:
        d.fill_(3)

    load_by(lambda view, spec: kernel)
    view, (x, w) = replace(VIEW), (X.half(), W.half())
    launch, out = (
        BoundLaunch(lambda: [view], x, torch.float16, None),
        torch.ones(1, 6, 6, 16).half(),
    )
    with dry_run.dry():
        launch.run(x, w, out)
    assert not out.any()
    for _ in range(2):
        launch.run(x, w, out.zero_())
        assert bool((out == 3).all())
    assert [found for found, _ in launch._bound_any] == [kernel]


def test_what_is_kept_holds_no_cloud() -> None:
    """The kernel that comes later knows its view without the index buffer."""
    kernels: list[Any] = []
    memory: list[Any] = []

    def call() -> None:
        index = torch.zeros(27, 36, dtype=torch.int32).T
        memory.append(weakref.ref(index))
        kernels.append(gpu_plan.Plan(kernel_map_view(index, 16, 16), torch.float32, -1)._kernel)

    lc.precompile(call)
    gc.collect()
    assert memory[0]() is None
    assert not kernels[0].is_dry()


def test_other_threads_go_on_launching_where_they_are_to(gpu: Gpu) -> None:
    """As while a network is captured: theirs are results, not zeros."""
    gpu.loads(on_cpu)
    seen: dict[str, bool] = {}

    def call(name: str, rows: int) -> None:
        index = torch.zeros(27, rows, dtype=torch.int32).T
        kernel: Any = gpu_plan.Plan(kernel_map_view(index, 16, 16), torch.float32, -1)._kernel
        seen[name] = isinstance(kernel, DeferredKernel)

    for others, expected in ((False, False), (True, True)):
        with dry_run.dry(others=others):
            call("own", 40)
            thread = threading.Thread(target=call, args=("other", 40))
            thread.start()
            thread.join()
        assert seen == {"own": True, "other": expected}


def test_what_cannot_be_compiled_for_another_gpu() -> None:
    with pytest.raises(ArgumentError, match=r"`arch`: expected one of sm_80, .*got 'sm_70'"):
        lc.precompile(print, arch="sm_70")
    with pytest.raises(
        ArgumentTypeError,
        match="`function`: expected a function that can be sent to another process",
    ):
        lc.precompile(lambda: None, arch="sm_90a")
    with pytest.raises(ArgumentTypeError, match="`function`: expected a callable, got in"):
        lc.precompile(5, arch="sm_90a")  # type: ignore[arg-type]


class Answers(Workers[Any]):
    """Processes that do not start, and answer for a call and two kernels that it adds."""

    def __init__(self, errors: list[Any], function: Any, processes: int, **more: Any) -> None:
        super().__init__(function, processes, **more)
        self._given = errors

    def add(self, item: Any, weight: float = 0.0) -> None:
        arch, _ = item
        assert arch == "sm_86"

    def finish(self, tick: Any = None) -> list[Any]:
        for answer in ((0, 1), (1, 3), (2, 3), (3, 3)):
            tick(*answer)
        return self._given


def test_a_call_that_is_looked_at_counts_for_no_kernel(compile_by: Callable[[Any], None]) -> None:
    ticks: list[tuple[int, int]] = []
    compile_by(partial(Answers, [None, None, None]))
    tick = lambda *of: ticks.append(of)  # noqa: E731
    assert lc.precompile(torch.nn.ReLU(), X, arch="sm_86", tick=tick) == 2
    assert ticks == [(0, 0), (0, 2), (1, 2), (2, 2)]


def test_what_cannot_be_compiled_for_a_gpu_that_is_not_here_is_raised(
    compile_by: Callable[[Any], None],
) -> None:
    """Nobody loads it here, and meets the error."""
    compile_by(partial(Answers, [None, OSError("full"), None]))
    with pytest.raises(OSError, match="full"):
        lc.precompile(torch.nn.ReLU(), X, arch="sm_86")


def test_a_folder_that_others_write_to_is_named_before_anything_runs(tmp_path: Path) -> None:
    tmp_path.chmod(0o777)
    with pytest.raises(PermissionError, match=f"{tmp_path} is not used: others.*LAYOUTCONV_CACHE"):
        lc.precompile(torch.nn.ReLU(), X, arch="sm_86")


class Step(torch.nn.Module):
    """A step of training of an image whose convolutions are of tensor cores, and depthwise."""

    def __init__(self) -> None:
        super().__init__()
        layers = lc.nn.Conv2d(16, 32, 3, padding=1), lc.nn.Conv2d(32, 32, 3, groups=32)
        self.net = torch.nn.Sequential(*layers)

    def forward(self, x: Tensor) -> None:
        self.net(x).sum().backward()
        pack_lines(x, LinePacking.resized(16, 24))  # as layers of few channels do


def three_cells() -> Tensor:
    return torch.tensor([[0, 1, 2, 3], [0, 1, 2, 4], [0, 5, 5, 5]], dtype=torch.int32)


class SparseStep(torch.nn.Module):
    """Steps of training of a point cloud, whose norm and ReLU are kernels as well: from the second
    on they go the way of a call that is known.
    """

    def __init__(self, steps: int) -> None:
        super().__init__()
        self.steps = steps
        conv = spconv.SubMConv3d(16, 32, 3, bias=False)
        self.net = spconv.SparseSequential(conv, torch.nn.BatchNorm1d(32), torch.nn.ReLU())

    def forward(self, features: Tensor, cells: Tensor) -> None:
        features.requires_grad_()
        for _ in range(self.steps):
            x = spconv.SparseConvTensor(features, cells, [8, 8, 8], 1)
            self.net(x).features.sum().backward()


@pytest.mark.slow
def test_kernels_are_compiled_for_a_gpu_that_is_not_here(compile_by: Callable[[Any], None]) -> None:
    """Each once: forward, the gradient of the filter, three of the depthwise layer, a packing. Of
    the cloud forward, both gradients and the sum of the filter's, the norm both ways, and four of
    its map: a search that sorts, one that does not, pairs counted and written.
    """
    compile_by(Workers)
    call = Step(), torch.zeros(1, 16, 8, 8)
    for arch, expected in (("sm_90a", 6), ("sm_86", 6), ("sm_90a", 0)):
        assert lc.precompile(*call, arch=arch, processes=2) == expected
    step = SparseStep(2), torch.zeros(3, 16), three_cells()
    for expected in (10, 0):
        assert lc.precompile(*step, arch="sm_90a", processes=2) == expected


TWO_STEPS = """
import torch
from layoutconv.testing import stand_in
from tests.tuning.test_precompile import SparseStep, three_cells

asked = []
stand_in.install("count", asked.append)
step, features, cells = SparseStep(1), torch.zeros(3, 16), three_cells()
step(features, cells)
print(len(asked))
step(features, cells)
print(len(asked))
"""


@pytest.mark.skipif(torch.cuda.is_available(), reason="a CPU stands in for an H200")
def test_a_first_step_asks_for_the_kernels_of_later_ones() -> None:
    """Six, for a point cloud, on a CPU that stands in for a GPU."""
    done = run_python(["-c", TWO_STEPS], ROOT)
    assert done.stdout.split() == ["6", "6"], done.stderr


OF_MAIN = """
import threading
import torch
import layoutconv as lc

print("ran")
threading.Thread(target=threading.Event().wait, daemon=True).start()

class Net(torch.nn.Module):
    def __init__(self, layer):
        super().__init__()
        self.layer = layer

    def forward(self, x):
        self.layer(x).sum().backward()

net, x = Net({layer}), torch.ones(64, 8, 16, 16)
net(x)  # which starts threads, of torch
print(lc.precompile(net, x, arch="sm_80", processes=1))
print(lc.precompile(net, x, arch="sm_80", processes=1))
"""


def run_of_main(layer: str, kept: Path, name: str | None) -> list[str]:
    """Run the program, under a name without a guard or as ``-c``; what it printed."""
    program, started = OF_MAIN.format(layer=layer), ["-c"]
    if name is None:
        started.append(program)
    else:
        started = [str(kept / name)]
        (kept / name).write_text(program)
    environment = {**os.environ, "LAYOUTCONV_CACHE_DIR": str(kept / "kernels")}
    run = partial(subprocess.run, capture_output=True, text=True, cwd=ROOT, timeout=300)
    done = run([sys.executable, *started], env={**environment, "PYTHONPATH": str(ROOT)})
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


@pytest.mark.skipif(not can_fork(), reason="no process of several threads may be forked here")
@pytest.mark.parametrize("name", [None, "script.py"])
def test_a_network_of_the_main_module_is_looked_at(tmp_path: Path, name: str | None) -> None:
    """One of a notebook, of ``python -c`` and of a script without a guard, which runs once."""
    assert run_of_main("torch.nn.Linear(16, 16)", tmp_path, name) == ["ran", "0", "0"]


@pytest.mark.slow
@pytest.mark.skipif(not can_fork(), reason="no process of several threads may be forked here")
def test_kernels_of_a_network_of_the_main_module_are_compiled(tmp_path: Path) -> None:
    """Forward, the filter's gradient and its sum, though the network ran on the CPU before."""
    layer = "lc.nn.Conv2d(8, 16, 3)"
    assert run_of_main(layer, tmp_path, None) == ["ran", "3", "0"]


def no_fork() -> None:
    """Raise what torch does in a fork of a process that ran a backward pass beside a GPU."""
    raise RuntimeError(
        "Unable to handle autograd's threading in combination with fork-based multiprocessing."
    )


@pytest.mark.skipif(not can_fork(), reason="no process of several threads may be forked here")
def test_a_backward_pass_that_no_fork_runs_is_refused_by_name() -> None:
    with pytest.raises(
        ArgumentError, match="`function`: expected a function of a module that can be imported"
    ):
        _look_in_fork("sm_80", pickle.dumps((no_fork, ())), print)
    with pytest.raises(ZeroDivisionError):  # an error of the function's own stays
        _look_in_fork("sm_80", pickle.dumps((divmod, (1, 0))), print)


def test_a_call_in_a_fork_adds_and_raises() -> None:
    if not can_fork():
        pytest.skip("no process of several threads may be forked here")
    added: list[Any] = []

    def fails(add: Any) -> None:
        add(b"kernel", 2.0)
        add(b"other", 1.0)
        raise ArgumentError("x", "a number", "none")

    with pytest.raises(ArgumentError, match="`x`: expected a number, got none"):
        call_in_fork(fails, lambda *message: added.append(message))
    assert added == [(b"kernel", 2.0), (b"other", 1.0)]
    with pytest.raises(BrokenProcessPool, match="the process that called the function ended"):
        call_in_fork(lambda add: os._exit(1), added.append)


NETWORK = """
import sys
import torch
import layoutconv as lc
from layoutconv.testing import stand_in

if __name__ == "__main__":
    stand_in.pretend()
    net = torch.nn.Sequential(
        lc.nn.Conv2d(16, 32, 3, padding=1), torch.nn.ReLU(), lc.nn.Conv2d(32, 32, 1)
    ).half()
    x, seen = torch.zeros(1, 16, 8, 8, dtype=torch.float16), []
    tick = lambda done, total: seen.append((done, total))
    with torch.no_grad():
        print(lc.precompile(net, x, processes=2, tick=tick), seen[-1], "cutlass" in sys.modules)
"""


@pytest.mark.slow
@pytest.mark.skipif(torch.cuda.is_available(), reason="a CPU stands in for an H200")
def test_kernels_of_a_network_are_compiled_without_a_gpu(tmp_path: Path) -> None:
    """In processes of their own, and for the GPU that a CPU stands in for."""
    script, kept = tmp_path / "network.py", tmp_path / "kernels"
    script.write_text(NETWORK)
    environment = {**os.environ, "LAYOUTCONV_CACHE_DIR": str(kept)}
    ran = subprocess.run(
        [sys.executable, str(script)], env=environment, capture_output=True, text=True, check=True
    )
    kernels = len(list(kept.glob("*.o")))
    assert kernels == 2
    assert ran.stdout.strip() == f"{kernels} ({kernels}, {kernels}) False"  # others compiled
