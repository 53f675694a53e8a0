"""Process-wide caches: each has a name, a bound, and is cleared with all others.

A :class:`BoundedCache` is for values that take memory: views, plans, bound launches. It is bounded
in entries and in bytes. :func:`remembered` is for values of a few bytes, numbers and objects
without tensors, and is ``functools.lru_cache``, in C, with a bound that somebody chose. Nothing
else in the package keeps values for the life of the process, but for what docs/memory.md lists.

There are no locks: a child of ``fork`` finds none that a thread of its parent held.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Hashable
from functools import lru_cache, partial, wraps
from types import CellType, FunctionType, MethodType, ModuleType
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

if TYPE_CHECKING:
    from functools import _lru_cache_wrapper

Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")

_OPAQUE = 512  # bytes of what Python cannot look into, such as a guard of torch's: 100 to 1000
_HEADER = 16  # bytes of the garbage collector, before an object that it tracks
_CONTAINERS = (dict, list, tuple, set, frozenset, partial, MethodType, CellType)
_LEAVES = (int, float, complex, str, bytes, range)  # whose size Python says
_SHARED = (type, ModuleType, type(None))  # what there is once, whoever refers to it
_OURS = ("layoutconv", "kernels")


class Usage(NamedTuple):
    """The fill of a cache: entries and bytes, and how many there may be; None: not counted."""

    entries: int
    most_entries: int
    nbytes: int | None = None
    most_bytes: int | None = None


class BoundedCache(Generic[Key, Value]):
    """Least-recently-used cache, bounded in entries and in bytes.

    It has two generations. What is kept, or found among the old, is young; when the young are half
    of what there may be, they become the old ones, and what was old and not asked for is dropped.
    So what was used within the last half of a cache's entries stays, and a hit among the young is
    the look-up of a dictionary and nothing else: ``cache.young.get(key) or cache.renewed(key)``,
    where a call of Python is one too many. Values are not None.

    Args:
        name: as docs/memory.md lists it; :func:`clear_caches` clears what has a name.
        entries: the most that are kept, at least 2.
        nbytes: the most that they take; what alone takes more than half of it is not kept.

    >>> cache = BoundedCache("", entries=4, nbytes=1000)
    >>> for number in range(3):
    ...     cache.put(number, str(number), 100)
    >>> cache.get(0)
    '0'
    >>> for number in range(3, 6):
    ...     cache.put(number, str(number), 100)
    >>> [number for number in range(6) if cache.get(number)], cache.usage().nbytes
    ([3, 4, 5], 300)
    >>> cache.put(6, "too large", 501)
    >>> cache.get(6)
    """

    def __init__(self, name: str, *, entries: int, nbytes: int) -> None:
        self.most_entries, self.most_bytes = entries, nbytes
        self.young: dict[Key, Value] = {}
        self._old: dict[Key, Value] = {}
        self._sizes: dict[Key, tuple[int, int]] = {}  # entries and bytes, of both
        self._weight = (0, 0)  # of the young
        self.era = object()  # another one after each time that all was dropped
        if name:
            _BOUNDED[name] = self

    def get(self, key: Key) -> Value | None:
        """The value that is kept for a key, which is young from now on; or None."""
        found = self.young.get(key)
        return self.renewed(key) if found is None else found

    def renewed(self, key: Key) -> Value | None:
        """The same, where the key is not among the young."""
        found, size = self._old.get(key), self._sizes.get(key)
        if found is None or size is None:
            return None
        self.put(key, found, size[1], size[0])
        return found

    def put(self, key: Key, value: Value, nbytes: int, entries: int = 1) -> None:
        """Keep a value in place of the one before; it may stand for several ``entries``."""
        most = max(1, self.most_entries // 2), self.most_bytes // 2
        self.drop(key)
        if entries > most[0] or nbytes > most[1]:
            return
        young = self._weight[0] + entries, self._weight[1] + nbytes
        # Threads that put at once may lose what one added to the weight, but no entry.
        if young[0] > most[0] or young[1] > most[1] or len(self.young) >= most[0]:
            self._grow_old()
            young = entries, nbytes
        self.young[key], self._sizes[key], self._weight = value, (entries, nbytes), young

    def drop(self, key: Key) -> None:
        """Keep nothing for a key."""
        entries, nbytes = self._sizes.pop(key, (0, 0))
        if self.young.pop(key, None) is not None:
            self._weight = self._weight[0] - entries, self._weight[1] - nbytes
        self._old.pop(key, None)

    def clear(self) -> None:
        """Drop all of it."""
        self.young, self._old, self._sizes, self._weight = {}, {}, {}, (0, 0)
        self.era = object()

    def usage(self) -> Usage:
        """Return how full it is."""
        sizes = list(self._sizes.values())
        entries, nbytes = sum(size[0] for size in sizes), sum(size[1] for size in sizes)
        return Usage(entries, self.most_entries, nbytes, self.most_bytes)

    def values(self) -> list[Value]:
        """All that is kept, the old first."""
        return [*self._old.values(), *self.young.values()]

    def __len__(self) -> int:
        return len(self.young) + len(self._old)

    def _grow_old(self) -> None:
        """Drop the old; the young take their place."""
        dropped, self._old, self.young = self._old, self.young, {}
        for key in list(dropped):
            self._sizes.pop(key, None)


_BOUNDED: dict[str, BoundedCache[Any, Any]] = {}
_FUNCTIONS: dict[str, _lru_cache_wrapper[Any]] = {}
_STAYING: dict[str, _lru_cache_wrapper[Any]] = {}
_UNLOADED: list[Callable[[], None]] = []


def remembered(
    entries: int, *, stays: bool = False
) -> Callable[[Callable[..., Value]], _lru_cache_wrapper[Value]]:
    """Decorator of a function of hashable arguments: so many results of a few bytes are kept.

    ``stays``: a CUDA graph may read them, so that :func:`clear_caches` drops them with kernels.
    """

    def decorate(function: Callable[..., Value]) -> _lru_cache_wrapper[Value]:
        found = lru_cache(maxsize=entries)(function)
        registry = _STAYING if stays else _FUNCTIONS
        registry[f"{function.__module__}.{function.__qualname__}"] = found
        return found

    return decorate


def kept_in(
    cache: BoundedCache[Any, Any],
) -> Callable[[Callable[..., Value]], Callable[..., Value]]:
    """Decorator of a function of hashable arguments, whose results are kept in a cache.

    Of arguments without a hash, a list, say, the result is computed and not kept.

    >>> squares = BoundedCache("", entries=8, nbytes=1000)
    >>> @kept_in(squares)
    ... def square(number):
    ...     return number * number
    >>> square(1000) is square(1000), len(squares)
    (True, 1)
    """

    def decorate(function: Callable[..., Value]) -> Callable[..., Value]:
        @wraps(function)
        def found(*args: Any, **options: Any) -> Value:
            key = (function, args, *options.items()) if options else (function, args)
            try:
                value: Value | None = cache.get(key)
            except TypeError:
                return function(*args, **options)
            if value is None:
                value = function(*args, **options)
                cache.put(key, value, footprint(key[1:], value))
            return value

        return found

    return decorate


def put_few(kept: dict[Any, Value], key: Any, value: Value, most: int) -> Value:
    """Keep a value in a dictionary that belongs to an object; the first of too many is dropped."""
    while len(kept) >= most:
        kept.pop(next(iter(kept)), None)
    kept[key] = value
    return value


def footprint(*values: Any) -> int:
    """Bytes that values keep alive, about: of tuples and the like, our own objects, and tensors.

    What several values share counts for each. Of what Python cannot look into, ``_OPAQUE``.

    >>> import array
    >>> footprint((1000, 2000)), footprint(array.array("b", [0]) * 1000) < 2000
    (128, True)
    """
    seen: set[int] = set()
    total, waiting = 0, list(values)
    while waiting:
        value = waiting.pop()
        mark = id(value)
        if mark in seen:
            continue
        seen.add(mark)
        kind = _looked_into(type(value))  # type: ignore[arg-type]
        if kind == "leaf":
            total += sys.getsizeof(value)
        elif kind == "container":
            total += sys.getsizeof(value) + _HEADER
            waiting += gc.get_referents(value)
        elif kind == "object":
            held = gc.get_referents(value)
            total += sys.getsizeof(value) + _HEADER + 8 * len(held)
            waiting += held
        elif kind == "function":  # not its globals
            total += sys.getsizeof(value) + _HEADER
            waiting += (*(value.__closure__ or ()), value.__defaults__, value.__dict__)
        elif kind == "opaque":
            total += getattr(value, "nbytes", 0) + _OPAQUE
    return total


@lru_cache(maxsize=1024)
def _looked_into(kind: type[Any]) -> str:
    """A class of objects: shared by all, or of their own, and what holds what they hold."""
    if issubclass(kind, (*_SHARED, BoundedCache)):  # a call that knows a cache keeps none of it
        return "shared"
    if issubclass(kind, _LEAVES):
        return "leaf"
    if issubclass(kind, _CONTAINERS):
        return "container"
    if issubclass(kind, FunctionType):
        return "function"
    return "object" if kind.__module__.partition(".")[0] in _OURS else "opaque"


def usages() -> dict[str, Usage]:
    """Return how full the process-wide caches are of the modules that are imported, by name."""
    found = {name: cache.usage() for name, cache in _BOUNDED.items()}
    for name, function in (_FUNCTIONS | _STAYING).items():
        info = function.cache_info()
        found[name] = Usage(info.currsize, info.maxsize or 0)
    return found


def clear_caches(*, kernels: bool = False) -> None:
    """Drop what calls keep in memory for those to come: views, plans and bound launches.

    Results stay what they were; the next call of each kind takes milliseconds more. What belongs to
    an object, a kernel map's plans, say, goes with the object, and what is kept on disk stays
    there. Any thread may call this at any time.

    Args:
        kernels: unload kernels as well, 0.1 MB each and their code on the GPU, and tables on GPUs.
            It waits for the GPUs. A CUDA graph that was captured before must not be replayed after,
            as it launches these kernels; nor may another thread convolve meanwhile.

    >>> import torch
    >>> import layoutconv as lc
    >>> y = lc.conv1d(torch.ones(1, 4, 8), torch.ones(2, 4, 3))
    >>> usages()["dense calls"].entries > 0
    True
    >>> lc.clear_caches()
    >>> usages()["dense calls"].entries
    0
    """
    for clear in (
        *(cache.clear for cache in _BOUNDED.values()),
        *(function.cache_clear for function in _FUNCTIONS.values()),
    ):
        clear()
    if kernels:
        for unload in _UNLOADED:
            unload()
        for function in _STAYING.values():
            function.cache_clear()


def unloaded_by(unload: Callable[[], None]) -> Callable[[], None]:
    """Decorator of a function that unloads kernels, for :func:`clear_caches`."""
    _UNLOADED.append(unload)
    return unload
