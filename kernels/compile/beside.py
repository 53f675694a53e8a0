"""Kernels that another process compiles, while this one goes on without them."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from contextlib import suppress
from importlib.util import find_spec
from threading import Thread

from layoutconv.base.cache_folder import usable_folder
from layoutconv.base.caches import BoundedCache
from layoutconv.base.processes import Workers

from .store import is_at_hand, ready_to_compile

Load = Callable[[], object]  # of a kernel; it can be pickled

_begun: BoundedCache[Hashable, Thread] = BoundedCache(
    "kernels compiled beside", entries=256, nbytes=1 << 20
)


def are_at_hand(kernels: Sequence[tuple[Hashable, Load]]) -> bool:
    """Return whether all kernels can be loaded at once, by keys as :func:`~.store.load` takes them.

    Those that nothing has yet are compiled in other processes, and kept; each is tried once.
    """
    missing = [(key, load) for key, load in kernels if not is_at_hand(key)]
    new = [(key, load) for key, load in missing if _begun.get(key) is None]
    if new and usable_folder() is not None and find_spec("cutlass") is not None:
        thread = Thread(target=_compile, args=([load for _, load in new],), daemon=True)
        for key, _ in new:
            _begun.put(key, thread, 1024)
        thread.start()
    return not missing


def _compile(loads: Sequence[Load]) -> None:
    # Whatever goes wrong goes wrong once more, aloud, for who cannot do without these kernels.
    with suppress(Exception), Workers(_call, len(loads), ready=ready_to_compile) as workers:
        for load in loads:
            workers.add(load)
        workers.finish()


def _call(load: Load) -> None:
    load()
