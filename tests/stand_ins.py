"""Stand-ins for a GPU, and for kernels that were compiled before: each seam, once."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from .watched import Watch


class Gpu:
    """A GPU that is not there: what the library asks of one, a test answers.

    What a test does not answer is as it is where the test runs. Everything is as before after it.
    """

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        from layoutconv.gpu.kernel_source import source

        self._patch, self._source = patch, source()

    def like(self, machine: Any) -> None:
        """Every GPU is one: an architecture of ``MACHINES``, or a machine."""
        from layoutconv.gpu import machines
        from layoutconv.planning.machine import MACHINES

        machines.stand_in(MACHINES[machine] if isinstance(machine, str) else machine)

    def loads(self, load: Callable[[Any, Any], Any]) -> None:
        """Plans get what ``load(view, spec)`` returns as their kernel."""
        from layoutconv.gpu.kernel_source import take_from

        take_from(load)

    def says(self, **answers: Any) -> None:
        """Functions of ``torch.cuda`` return an answer each; an answer that can be called is asked,
        or is the class.
        """
        import torch

        for name, answer in answers.items():
            function = answer if callable(answer) else _always(answer)
            self._patch.setattr(torch.cuda, name, function)

    def has_driver(self, version: int | None) -> None:
        """NVIDIA's driver has a CUDA: 12090 is 12.9; None: there is no driver."""
        from layoutconv.base import devices

        self._patch.setattr(devices, "cuda_driver", lambda: version)

    def runs_kernels(self, there: bool = True) -> None:
        """Kernels compute with tensors that are on the CPU, and torch convolves none."""
        from layoutconv.base import devices
        from layoutconv.ops import dense_passes

        self._patch.setattr(devices, "runs_kernels", lambda tensor: there)
        self._patch.setattr(dense_passes, "is_torchs", lambda *_: False)

    def cuts_no_sum(self) -> None:
        """No sum is computed in parts, where nothing stands in for what adds them up."""
        from layoutconv.planning import cost_model

        self._patch.setattr(cost_model, "MOST_SPLITS", 1)

    def is_as_before(self) -> None:
        self.like(None)
        self.loads(self._source)


def _always(answer: Any) -> Callable[..., Any]:
    return lambda *_, **__: answer


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[Gpu]:
    made = Gpu(monkeypatch)
    yield made
    made.is_as_before()


class Clock:
    """Races between tiles on a GPU that is not there; any tile may win, and none is compiled."""

    def __init__(self, patch: pytest.MonkeyPatch, gpu: Gpu) -> None:
        from layoutconv.planning.cost_model import shortlist
        from layoutconv.tuning import precompile, race

        self._patch = patch
        gpu.like("sm_90a")
        gpu.loads(lambda view, spec: spec)
        gpu.says(is_current_stream_capturing=False)
        patch.setattr(precompile, "compile_kernels", lambda *_: None)
        patch.setattr(race, "shortlist", partial(shortlist, far=float("inf")))

    def measures(self, clock: Callable[..., Any]) -> None:
        """Take the time of plans by what ``clock(view, dtype, out_dtype, device)`` returns."""
        from layoutconv.tuning import race

        self._patch.setattr(race, "_on_gpu", clock)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch, gpu: Gpu) -> Clock:
    return Clock(monkeypatch, gpu)


@pytest.fixture
def kernel_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder of kernels, not made yet, of a process that has loaded nothing."""
    from layoutconv.kernels.compile import store

    path = tmp_path / "kernels"
    monkeypatch.setenv("LAYOUTCONV_CACHE_DIR", str(path))
    monkeypatch.delenv("LAYOUTCONV_CACHE_LIMIT", raising=False)
    store.unload()
    yield path
    store.unload()  # stand-ins of kernels, too


@pytest.fixture
def compilations(watched: Watch) -> list[tuple[Any, ...]]:
    """Views and specs that kernels of the template are compiled for, one after the other."""
    from layoutconv.kernels.compile import build

    return watched("build", build, note=lambda call: call.args)


@pytest.fixture
def dense_execute(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[..., Any]], None]:
    """A function: dense passes run their views by another one than ``lc.execute``."""
    from layoutconv.ops import dense_passes

    return partial(monkeypatch.setattr, dense_passes, "execute")


@pytest.fixture
def guards_in_python(monkeypatch: pytest.MonkeyPatch) -> None:
    """A torch without guards of tensors: ours look at a call's tensors, in Python."""
    from layoutconv.ops import guard

    monkeypatch.setattr(guard, "TENSOR_GUARDS", None)


@pytest.fixture
def packed_for_any_gain(monkeypatch: pytest.MonkeyPatch) -> None:
    """Copies in which channels are packed take none of the host's time, so that all that can be
    made are.
    """
    from layoutconv.gpu import packing_choice

    monkeypatch.setattr(packing_choice, "HOST", -1e9)


@pytest.fixture
def copied_from(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[int, int], None]]:
    """A function: filters are copied to be K-major for so many rows, and so many products."""
    from layoutconv.gpu import filter_choice
    from layoutconv.ops import dense_passes

    def least(rows: int, products: int) -> None:
        dense_passes.forget()  # they were made with others
        for name in ("LEAST", "LEAST_OF_MAP"):
            monkeypatch.setattr(filter_choice, name, filter_choice.LeastWork(rows, products, 0))

    yield least
    dense_passes.forget()


@pytest.fixture
def ungathered(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """A function: sparse layers on a CPU run views from now on, as a GPU does, where they gathered
    products.
    """
    from layoutconv.ops import sparse_calls, sparse_operators

    def end() -> None:
        for module in (sparse_calls, sparse_operators):
            monkeypatch.setattr(module, "is_gathered", lambda tensor: False)

    return end


@pytest.fixture
def staged(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[Any], Any]]:
    """A function: rows of all that streams go through a ``Staging``, which it returns."""
    from layoutconv.sparse.stream import staging

    made: list[Any] = []

    def through(one: Any) -> Any:
        made.append(one)
        monkeypatch.setattr(staging, "_kept", lambda *_: one)
        return one

    yield through
    for one in made:
        one.threads.shutdown()


@pytest.fixture
def spoiled(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """A function: from now on another one changes what ``lc.execute`` returns, or the function of a
    ``name`` of an ``owner``, as a mistake of a kernel does.
    """
    import layoutconv as lc

    right: dict[tuple[Any, str], Callable[..., Any]] = {}

    def by(change: Callable[[Any], object], name: str = "execute", owner: Any = lc) -> None:
        original = right.setdefault((owner, name), getattr(owner, name))

        def wrong(*arguments: Any, **options: Any) -> Any:
            result = original(*arguments, **options)
            change(result)
            return result

        monkeypatch.setattr(owner, name, wrong)

    return by
