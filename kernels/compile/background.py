"""Compile kernels in the background, in other processes; calls go on without them."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from contextlib import suppress
from importlib.util import find_spec
from threading import Thread
from time import monotonic

from layoutconv.base.cache_folder import usable_folder
from layoutconv.base.caches import BoundedCache
from layoutconv.base.processes import Workers

from .store import is_at_hand, ready_to_compile

Load = Callable[[], object]  # loads a kernel; can be pickled

AGAIN = 1.0  # seconds between two look-ups of a kernel; one takes 0.2 ms
_begun: BoundedCache[Hashable, float] = BoundedCache(  # the time of each kernel's last look-up
    "kernels compiled in the background", entries=256, nbytes=1 << 20
)


def are_at_hand(
    kernels: Sequence[tuple[Hashable, Load]], is_there: Callable[[Hashable], bool] = is_at_hand
) -> bool:
    """Return whether all kernels can be loaded without compiling; keys are as for ``store.load``.

    Missing kernels are compiled in other processes and kept; each is tried once. They are looked up
    again after ``AGAIN`` seconds, and count as missing until then.
    """
    now = monotonic()
    if any((_begun.get(key) or now - AGAIN) + AGAIN > now for key, _ in kernels):
        return False
    missing = [(key, load) for key, load in kernels if not is_there(key)]
    new = [load for key, load in missing if _begun.get(key) is None]
    for key, _ in missing:
        _begun.put(key, now, 1024)
    if new and usable_folder() is not None and find_spec("cutlass") is not None:
        with suppress(RuntimeError):  # the system has no thread to spare
            Thread(target=_compile, args=(new,), daemon=True).start()
    return not missing


def _compile(loads: Sequence[Load]) -> None:
    # Errors are silent here: whoever needs these kernels compiles them again, and sees the error.
    with suppress(Exception), Workers(_call, len(loads), ready=ready_to_compile) as workers:
        for load in loads:
            workers.add(load)
        workers.finish()


def _call(load: Load) -> None:
    load()
