"""CUDA graphs of functions: warmed up, captured on a side stream, replayed."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple, Protocol

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from ..base.torch_internals import end_of_pool, release_pool


class Recording(NamedTuple):
    """A recorded function.

    Attributes:
        replay: runs it again, on the memory that it was recorded with, and returns its result.
        nbytes: the memory that it keeps.
    """

    replay: Callable[[], Any]
    nbytes: int


class Recorder(Protocol):
    """A recorder of functions of fixed shapes: a GPU, or a stand-in in a test."""

    def record(self, run: Callable[[], Any]) -> Recording:
        """Warm ``run`` up and record it; raises what prevents that."""


class CudaGraphs:
    """A :class:`Recorder` of CUDA graphs of a device, each with memory of its own."""

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def record(self, run: Callable[[], Any]) -> Recording:
        """Capture ``run``, which has run before with other values in the same memory."""
        with torch.cuda.device(self._device), _own_casts():
            graph, result = _captured(run)
        pool = tuple(graph.pool())
        segments = torch.cuda.memory_snapshot()
        own = (s["total_size"] for s in segments if tuple(s["segment_pool_id"]) == pool)

        def replay() -> Any:
            with torch.cuda.device(self._device):
                graph.replay()
            return result

        return Recording(replay, sum(own))


@contextmanager
def _own_casts() -> Iterator[None]:
    """Lower autocast's weights inside the graph.

    Autocast's cache holds casts of old weight values, whose gradients end on another stream.
    """
    before = torch.is_autocast_cache_enabled()
    torch.set_autocast_cache_enabled(False)
    torch.clear_autocast_cache()
    try:
        yield
    finally:
        torch.set_autocast_cache_enabled(before)


def _captured(run: Callable[[], Any]) -> tuple[Any, Any]:
    """Return a graph, and what ``run`` returned while it was captured."""
    before = torch.cuda.current_stream()
    side = torch.cuda.Stream()
    side.wait_stream(before)
    with torch.cuda.stream(side):
        for _ in range(2):  # loads kernels, and binds calls, outside the capture
            run()
    before.wait_stream(side)
    graph, pool = torch.cuda.CUDAGraph(), torch.cuda.graph_pool_handle()
    try:
        # Other threads may go on allocating.
        with torch.cuda.graph(graph, pool=pool, capture_error_mode="thread_local"):
            result = run()
    except BaseException:
        torch.cuda.set_stream(before)  # a failed capture leaves its own stream current
        _given_up(graph, pool)
        raise
    torch.cuda.set_stream(before)
    return graph, result


_FAILED: list[Any] = []  # kept alive: torch's pinned-memory allocators query their graphs later


def _given_up(graph: Any, pool: Any) -> None:
    """End in torch what a failed capture has begun.

    Some releases (2.5 to 2.11 at least) do not: ``empty_cache`` then fails or frees nothing for the
    rest of the process, and the GPU's random generator refuses to draw.
    """
    device = torch.cuda.current_device()
    with suppress(RuntimeError):  # if torch has ended it
        end_of_pool(device, pool)
        _FAILED.append(graph)
        release_pool(device, pool)
    with suppress(RuntimeError):  # a capture that succeeds resets the generator
        number = torch.zeros(1, device="cuda")
        with torch.cuda.graph(torch.cuda.CUDAGraph(), capture_error_mode="thread_local"):
            number.zero_()


def recorder_of(device: torch.device) -> Recorder | None:
    """Return the recorder of a device; None if there is none."""
    return CudaGraphs(device) if device.type == "cuda" else None


# Functions that read a tensor's values on the host.
_READS = frozenset(
    (
        "__bool__", "__int__", "__float__", "__index__", "__complex__", "__contains__", "__array__",
        "item", "tolist", "numpy", "cpu", "nonzero", "argwhere", "masked_select", "bincount",
        "unique", "unique_consecutive", "_unique2", "equal", "allclose", "is_nonzero",
    )
)  # fmt: skip
# Modules of the package that read values of a CPU where a GPU runs kernels.
_ASIDE = (
    "layoutconv.cpu.", "layoutconv.gpu.", "layoutconv.tensors.", "layoutconv.sparse.maps.",
    "layoutconv.sparse.coords.cell_table", "layoutconv.kernels.",
)  # fmt: skip
_PASSES_ON = "layoutconv.nn.counted_rows"  # passes calls on, like torch


# Functions that wait for a device.
_WAITS = {
    wait.__code__: f"torch.cuda.{wait.__qualname__}"
    for wait in (
        torch.cuda.synchronize, torch.cuda.Stream.synchronize, torch.cuda.Event.synchronize,
    )
}  # fmt: skip


class HostReads(TorchFunctionMode):
    """Refuse calls that read a device's values on the host, or wait for it: a CUDA graph cannot.

    Such a call would fail in a capture, too, but leave more behind. Calls that wait take no
    tensors: a profile function of the thread intercepts them, unless another one is set.

    >>> with HostReads("cpu"):
    ...     torch.ones(2).sum().item()
    Traceback (most recent call last):
    RuntimeError: Tensor.item reads a value on the host, in\
 <doctest layoutconv.nn.graph_recorder.HostReads[0]>:2
    """

    def __init__(self, device: str) -> None:
        super().__init__()
        self._device, self._looks = device, False

    def __enter__(self) -> HostReads:
        super().__enter__()
        self._looks = sys.getprofile() is None
        if self._looks:
            sys.setprofile(_refuse_waiting)
        return self

    def __exit__(self, *error: Any) -> None:
        if self._looks:
            sys.setprofile(None)
        super().__exit__(*error)

    def __torch_function__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        name = getattr(function, "__name__", "")
        if name in _READS or (name == "__getitem__" and _has_mask(args[1:])) or (
            name == "to" and _leaves(self._device, args, kwargs)
        ):  # fmt: skip
            tensors = [value for value in args if isinstance(value, torch.Tensor)]
            if any(tensor.device.type == self._device for tensor in tensors):
                where = _caller(sys._getframe(1))
                if where is not None:
                    of = "Tensor." if hasattr(torch.Tensor, name) else "torch."
                    raise RuntimeError(f"{of}{name} reads a value on the host, in {where}")
        return function(*args, **kwargs)


class NoCollectives(TorchDispatchMode):
    """Refuse collectives: not all ranks warm up at once, so one would wait for the others.

    >>> with NoCollectives():
    ...     torch.ones(2).add_(1)
    tensor([2., 2.])
    """

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        if "c10d" in function.namespace or function.namespace == "symm_mem":
            name = f"{function.namespace}.{function.__name__.partition('.')[0].strip('_')}"
            raise RuntimeError(f"ranks wait for each other in {name}, and not all of them warm up")
        return function(*args, **(kwargs or {}))


def wrapper_of_ranks(net: torch.nn.Module) -> str:
    """Return the name of torch's class that makes ranks wait for each other in a network; or "".

    >>> wrapper_of_ranks(torch.nn.Linear(2, 2))
    ''
    """
    for module in net.modules():
        if type(module).__module__.startswith(("torch.nn.parallel", "torch.distributed")):
            return type(module).__name__
    return ""


def _has_mask(indices: Any) -> bool:
    flat = indices[0] if indices and isinstance(indices[0], tuple) else indices
    return any(isinstance(one, torch.Tensor) and one.dtype == torch.bool for one in flat)


def _leaves(device: str, args: Any, kwargs: Any) -> bool:
    """Return whether ``Tensor.to`` moves to a device of another kind."""
    for value in (*args[1:], *kwargs.values()):
        if isinstance(value, str | torch.device) and torch.device(value).type != device:
            return True
    return False


def _refuse_waiting(frame: Any, event: str, _: Any) -> None:
    """Refuse to wait for a device, as a profile function."""
    if event == "call" and frame.f_code in _WAITS:
        where = _caller(frame.f_back)
        if where is not None:
            raise RuntimeError(f"{_WAITS[frame.f_code]} waits for the device, in {where}")


def _caller(frame: Any) -> str | None:
    """Return the file and line that called torch, up from ``frame``; None if the package itself
    did, on a CPU.
    """
    while frame is not None:
        name = frame.f_globals.get("__name__", "")
        if not (name == "torch" or name.startswith(("torch.", _PASSES_ON))):
            if name.startswith(_ASIDE):
                return None
            return f"{frame.f_code.co_filename}:{frame.f_lineno}"
        frame = frame.f_back
    return ""
