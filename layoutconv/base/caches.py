"""Process-wide caches: each has a name and a bound, and all are cleared together.

A :class:`BoundedCache` is for values that take memory: views, plans, bound launches. It is bounded
in entries and bytes. :func:`remembered` is for values of a few bytes, numbers and objects without
tensors: ``functools.lru_cache``, in C, with a chosen bound. Nothing else in the package keeps
values for the life of the process, except what docs/memory.md lists.

There are no locks, so a child of ``fork`` never finds one held by a thread of its parent.
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

_OPAQUE = 512  # bytes of an object that Python cannot inspect, such as torch's guards: 100 to 1000
_HEADER = 16  # bytes of the garbage collector before an object that it tracks
_CONTAINERS = (dict, list, tuple, set, frozenset, partial, MethodType, CellType)
_LEAVES = (int, float, complex, str, bytes, range)  # whose size Python knows
_SHARED = (type, ModuleType, type(None))  # that exist once, however many refer to them
_OURS = ("layoutconv", "kernels")


class Usage(NamedTuple):
    """The fill of a cache: its entries and bytes with their limits; None if not counted."""

    entries: int
    most_entries: int
    nbytes: int | None = None
    most_bytes: int | None = None


class BoundedCache(Generic[Key, Value]):
    """A least-recently-used cache, bounded in entries and bytes.

    It has two generations. An entry is young when it is put, or found among the old. When the young
    reach half of the limit, they become the old ones, and the previous old ones are dropped. So
    what was used within the last half of a cache's entries stays. A hit among the young is a single
    dictionary look-up, ``cache.young.get(key) or cache.renewed(key)``, for callers for whom one
    more Python call is too slow. Values are not None.

    Args:
        name: as in docs/memory.md; :func:`clear_caches` clears caches with a name.
        entries: the most entries kept, at least 2.
        nbytes: the most bytes kept; an entry of more than half of it is not kept.

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
        self._sizes: dict[Key, tuple[int, int]] = {}  # entries and bytes, of both generations
        self._weight = (0, 0)  # of the young
        self.era = object()  # replaced each time that everything is dropped
        if name:
            _BOUNDED[name] = self

    def get(self, key: Key) -> Value | None:
        """Return the value of a key, which becomes young; None without one."""
        found = self.young.get(key)
        return self.renewed(key) if found is None else found

    def renewed(self, key: Key) -> Value | None:
        """Return the value of a key that is not among the young, as :meth:`get`."""
        found, size = self._old.get(key), self._sizes.get(key)
        if found is None or size is None:
            return None
        self.put(key, found, size[1], size[0])
        return found

    def put(self, key: Key, value: Value, nbytes: int, entries: int = 1) -> None:
        """Keep a value, replacing the key's previous one; it may count as several ``entries``."""
        most = max(1, self.most_entries // 2), self.most_bytes // 2
        self.drop(key)
        if entries > most[0] or nbytes > most[1]:
            return
        young = self._weight[0] + entries, self._weight[1] + nbytes
        # Threads that put at once may lose some of the weight, but no entry.
        if young[0] > most[0] or young[1] > most[1] or len(self.young) >= most[0]:
            self._grow_old()
            young = entries, nbytes
        self.young[key], self._sizes[key], self._weight = value, (entries, nbytes), young

    def drop(self, key: Key) -> None:
        """Drop the value of a key."""
        entries, nbytes = self._sizes.pop(key, (0, 0))
        if self.young.pop(key, None) is not None:
            self._weight = self._weight[0] - entries, self._weight[1] - nbytes
        self._old.pop(key, None)

    def clear(self) -> None:
        """Drop all values."""
        self.young, self._old, self._sizes, self._weight = {}, {}, {}, (0, 0)
        self.era = object()

    def usage(self) -> Usage:
        """Return how full the cache is."""
        sizes = list(self._sizes.values())
        entries, nbytes = sum(size[0] for size in sizes), sum(size[1] for size in sizes)
        return Usage(entries, self.most_entries, nbytes, self.most_bytes)

    def values(self) -> list[Value]:
        """Return all values, the old first."""
        return [*self._old.values(), *self.young.values()]

    def __len__(self) -> int:
        return len(self.young) + len(self._old)

    def _grow_old(self) -> None:
        """Drop the old values; the young become the old ones."""
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
    """Decorate a function of hashable arguments to keep this many results of a few bytes.

    ``stays``: CUDA graphs may read the results, so :func:`clear_caches` drops them with kernels.
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
    """Decorate a function of hashable arguments to keep its results in a cache.

    For arguments without a hash, such as a list, the result is computed and not kept.

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
    """Keep a value in a dictionary of an object; drop the oldest entries beyond ``most``."""
    while len(kept) >= most:
        kept.pop(next(iter(kept)), None)
    kept[key] = value
    return value


def footprint(*values: Any) -> int:
    """Return about how many bytes values keep alive: tuples and the like, our objects, and tensors.

    An object that cached values share counts for each of them; an uninspectable one as ``_OPAQUE``.

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
        elif kind == "function":  # without its globals
            total += sys.getsizeof(value) + _HEADER
            waiting += (*(value.__closure__ or ()), value.__defaults__, value.__dict__)
        elif kind == "opaque":
            total += getattr(value, "nbytes", 0) + _OPAQUE
    return total


@lru_cache(maxsize=1024)
def _looked_into(kind: type[Any]) -> str:
    """Classify a class of objects for :func:`footprint`: shared or owned, and how to inspect it."""
    if issubclass(kind, (*_SHARED, BoundedCache)):  # a call that refers to a cache does not own it
        return "shared"
    if issubclass(kind, _LEAVES):
        return "leaf"
    if issubclass(kind, _CONTAINERS):
        return "container"
    if issubclass(kind, FunctionType):
        return "function"
    return "object" if kind.__module__.partition(".")[0] in _OURS else "opaque"


def usages() -> dict[str, Usage]:
    """Return how full each process-wide cache of the imported modules is, by name."""
    found = {name: cache.usage() for name, cache in _BOUNDED.items()}
    for name, function in (_FUNCTIONS | _STAYING).items():
        info = function.cache_info()
        found[name] = Usage(info.currsize, info.maxsize or 0)
    return found


def clear_caches(*, kernels: bool = False) -> None:
    """Drop what calls keep in memory for later calls: views, plans and bound launches.

    Results do not change; the next call of each kind takes milliseconds more. A cache that belongs
    to an object, such as a kernel map's plans, ends with the object, and files on disk stay. Any
    thread may call this at any time.

    Args:
        kernels: also unload kernels, 0.1 MB each and their code on the GPU, and tables on GPUs.
            This waits for the GPUs. CUDA graphs captured before must not be replayed afterwards, as
            they launch these kernels, and no other thread may convolve meanwhile.

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
    """Register a function that unloads kernels, for :func:`clear_caches`; a decorator."""
    _UNLOADED.append(unload)
    return unload
