"""Calls replayed as CUDA graphs, by buckets of rows; the choice between replay and eager."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Hashable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple
from weakref import WeakSet

import torch

from ..base.caches import BoundedCache, put_few, unloaded_by
from ..errors import ArgumentError, ArgumentTypeError
from ..gpu.fp32_precision import multiplied_now
from ..ops.guard import is_watched_unseen
from ..sparse.coords.row_plan import RowCount
from .graph_arguments import CallArguments, Signature
from .graph_bucket import ALIGNMENT, OVERFLOW, Bucket, Eager, has_room
from .graph_recorder import Recorder, recorder_of
from .nested import taken_apart
from .training_state import Modes

if TYPE_CHECKING:
    from typing_extensions import Self

_FORMS = 64  # of arguments that are kept
_MOST_WARM_UPS = 64  # per network
_CAPTURED = WeakSet[Any]()  # all whose graphs launch kernels


class GraphBucket(NamedTuple):
    """A graph of a network: the most rows of its clouds and levels, and its memory.

    ``difference`` is that of its first result from the eager one, relative to the largest number.
    """

    rows: tuple[int, ...]
    levels: tuple[int, ...]
    nbytes: int
    hits: int
    difference: float


class GraphReport(NamedTuple):
    """The calls of a network, replayed or eager; see :func:`graphed`."""

    buckets: tuple[GraphBucket, ...]
    hits: int
    warm_ups: int
    eager: dict[str, int]

    def __str__(self) -> str:
        lines = [f"{self.hits} calls replayed a graph, {self.warm_ups} warmed one up"]
        for bucket in self.buckets:
            rows = ", ".join(map(str, bucket.rows))
            levels = ", ".join(map(str, bucket.levels)) or "none"
            lines.append(
                f"  up to {rows} rows, levels {levels}: {bucket.nbytes / 1e6:.1f} MB, "
                f"{bucket.hits} hits, difference {bucket.difference:.1g}"
            )
        lines += [f"{count} calls were eager: {why}" for why, count in self.eager.items()]
        return "\n".join(lines)


class GraphedCalls:
    """Calls of a network, replayed as CUDA graphs if possible.

    In a ``with`` statement, graphs and their memory live until the outermost one ends, which also
    restores the modes, and which parameters want gradients, of its beginning.

    Subclasses define the calls: ``_plainly`` runs one eagerly, ``_observed`` runs one eagerly for a
    capture, ``_new_bucket`` makes what is captured, and ``_refuses`` names calls without a graph.

    Attributes:
        module: the network.
    """

    module: torch.nn.Module

    def _begin(self, factor: float, buckets: int, nbytes: int | None) -> None:
        """Start with no graphs."""
        self._options = factor, buckets, nbytes
        self._entered: list[Modes] = []  # one for each entered ``with``
        self._recorder: Recorder | None = None  # replaces the device's
        self.reset()
        _CAPTURED.add(self)

    def reset(self) -> None:
        """Drop all graphs, and reset the counts of calls."""
        _, entries, nbytes = self._options
        if nbytes is None:
            nbytes = 8 << 30
            if torch.cuda.is_available():
                nbytes = torch.cuda.mem_get_info()[1] // 4
        self._lock = threading.RLock()
        self._buckets: BoundedCache[Hashable, Bucket] = BoundedCache(
            "", entries=entries, nbytes=nbytes
        )
        self._sizes: dict[Hashable, list[tuple[int, ...]]] = {}  # of buckets, by key
        self._places: dict[Hashable, tuple[int, ...]] = {}
        self._refused: dict[Hashable, str] = {}
        self._eager: Counter[str] = Counter()
        self._hits = self._warm_ups = 0

    def __enter__(self) -> Self:
        self._entered.append(Modes(self.module))
        return self

    def __exit__(self, *error: object) -> None:
        self._entered.pop().restore()
        if not self._entered:
            self.reset()

    # -- the calls of a subclass -------------------------------------------------------------------

    def _plainly(self, args: Any, kwargs: Any) -> Any:
        raise NotImplementedError

    def _observed(self, call: CallArguments, args: Any, kwargs: Any) -> Eager:
        raise NotImplementedError

    def _new_bucket(
        self, call: CallArguments, capacities: Sequence[int], count: RowCount, groups: int
    ) -> Bucket:
        raise NotImplementedError

    def _refuses(self, call: CallArguments) -> str:
        """Return why a call cannot be a graph's, whatever its clouds are; "" if it may be."""
        device = call.device
        if device is None:
            return "its tensors are on several devices, or there are none"
        if self._recorder is None and recorder_of(device) is None:
            return f"there are no CUDA graphs on a {device.type}"
        if is_watched_unseen() or (
            device.type == "cuda" and torch.cuda.is_current_stream_capturing()
        ):
            return "something looks at its calls, or captures them"
        return ""

    # -- a call ------------------------------------------------------------------------------------

    def _responded(self, args: Any, kwargs: Any) -> Any:
        """Return the result of a call, replayed or eager."""
        with self._lock:
            try:
                call = CallArguments(args, kwargs)
                refused = self._refuses(call)
            except RuntimeError as error:
                refused = str(error)
            if refused:
                return self._eagerly(refused, args, kwargs)
            return self._called(call, args, kwargs)

    def _called(self, call: CallArguments, args: Any, kwargs: Any) -> Any:
        places, mode = self._places.get(call.form), _mode(call)
        signature = None if places is None else call.signature(places, mode)
        if signature is None:
            return self._warmed_up(call, mode, args, kwargs)
        refused = self._refused.get(signature.key)
        if refused is not None or 0 in signature.rows:
            return self._eagerly(refused or "a cloud has no rows", args, kwargs)
        bucket = self._bucket(signature)
        if bucket is None:
            return self._warmed_up(call, mode, args, kwargs)
        answer = bucket.run(call, signature.rows)
        if not answer.refused:
            self._hits += 1
            return _into(bucket.returns, answer.result, args, kwargs)
        self._eager[answer.refused] += 1
        outgrown = answer.refused == OVERFLOW
        if not outgrown and bucket.is_current():  # the cloud is the cause
            return self._plainly(args, kwargs)
        self._buckets.drop((signature.key, bucket.groups))
        return self._warmed_up(call, mode, args, kwargs, bucket if outgrown else None)

    def _eagerly(self, why: str, args: Any, kwargs: Any) -> Any:
        self._eager[why] += 1
        return self._plainly(args, kwargs)

    def _bucket(self, signature: Signature) -> Bucket | None:
        """Return the smallest bucket that holds a call."""
        sizes = self._sizes.get(signature.key, [])
        for groups in sorted(sizes):
            if has_room(groups, signature.rows, 2 * self._options[0]):
                bucket = self._buckets.get((signature.key, groups))
                if bucket is not None:
                    return bucket
                sizes.remove(groups)  # it was evicted
        return None

    # -- warming up ------------------------------------------------------------------------------

    def _warmed_up(
        self,
        call: CallArguments,
        mode: Hashable,
        args: Any,
        kwargs: Any,
        small: Bucket | None = None,
    ) -> Any:
        """Return the result of an eager call, and capture a graph for others like it."""
        if self._warm_ups >= _MOST_WARM_UPS:
            return self._eagerly(f"{_MOST_WARM_UPS} graphs were captured already", args, kwargs)
        count = RowCount()
        with count.in_effect():
            eager = self._observed(call, args, kwargs)
        key: Hashable = None
        try:
            if eager.spoilt:
                raise RuntimeError(eager.spoilt)
            returns = _returned(eager.result, call, args, kwargs)
            if any(cells.repeats is not None for cells in (*call.cells, *count.given)):
                raise RuntimeError("cells are repeated")
            signature = self._signed(call, count, mode)
            key = signature.key
            self._warm_ups += 1
            bucket = self._captured(call, signature, count, eager, small)
            bucket.returns = returns
            self._keep(key, bucket)
        except Exception as error:  # networks may do anything that no graph can
            why = f"{type(error).__name__}: {error}".removeprefix("RuntimeError: ").split("\n")[0]
            self._eager[why] += 1
            if key is not None:
                put_few(self._refused, key, why, _FORMS)
        return eager.result

    def _signed(self, call: CallArguments, count: RowCount, mode: Hashable) -> Signature:
        """Return the signature of an eager call; the cells that it read give its groups."""
        rows = [len(cells) for cells in call.cells]
        for cells in count.given:
            if len(cells) not in rows:
                rows.append(len(cells))
        places = call.places(rows)
        if set(range(len(rows))) - set(places):
            raise RuntimeError("it makes cells with rows that none of its arguments has")
        signature = call.signature(places, mode)
        assert signature is not None
        put_few(self._places, call.form, places, _FORMS)
        if 0 in signature.rows:
            raise RuntimeError("a cloud has no rows")
        return signature

    def _captured(
        self,
        call: CallArguments,
        signature: Signature,
        count: RowCount,
        eager: Eager,
        small: Bucket | None,
    ) -> Bucket:
        """Capture a graph for calls like an eager one, which ``small`` could not hold."""
        if any(level.padded for level in count.levels):
            raise RuntimeError("a level has a capacity already")
        rows = [*signature.rows, *map(len, count.levels)]
        least = rows if small is None else [*small.groups, *small.levels]
        capacities = capacities_for(rows, least, self._options[0])
        bucket = self._new_bucket(call, capacities, count, len(signature.rows))
        device = call.device
        assert device is not None
        recorder = self._recorder or recorder_of(device)
        assert recorder is not None
        bucket.record(recorder, call, rows, eager, device)
        return bucket

    def _keep(self, key: Hashable, bucket: Bucket) -> None:
        name = key, bucket.groups
        self._buckets.put(name, bucket, bucket.nbytes)
        if self._buckets.get(name) is None:
            raise RuntimeError(f"a graph of {bucket.nbytes / 1e6:.0f} MB is too large to keep")
        sizes = self._sizes.setdefault(key, [])
        if bucket.groups not in sizes:
            sizes.append(bucket.groups)
        while len(self._sizes) > _FORMS:
            self._sizes.pop(next(iter(self._sizes)))

    # -- the report --------------------------------------------------------------------------------

    def report(self) -> GraphReport:
        """Return buckets with capacity, memory and hits, warm-ups, and eager calls with reasons."""
        buckets = tuple(
            GraphBucket(b.groups, b.levels, b.nbytes, b.hits, b.difference)
            for b in self._buckets.values()
        )
        return GraphReport(buckets, self._hits, self._warm_ups, dict(self._eager))


def check_options(net: Any, factor: float, buckets: int, nbytes: int | None) -> None:
    """Raise for invalid options of graphs."""
    if not isinstance(net, torch.nn.Module):
        raise ArgumentTypeError("net", "a torch.nn.Module", type(net).__name__)
    if not isinstance(factor, (int, float)) or not 1 <= factor < torch.inf:
        raise ArgumentError("factor", "a finite number >= 1", repr(factor))
    if not isinstance(buckets, int) or buckets < 2:
        raise ArgumentError("buckets", "an int >= 2", buckets)
    if nbytes is not None and not (isinstance(nbytes, (int, float)) and nbytes > 0):
        raise ArgumentError("nbytes", "bytes > 0, or None", nbytes)


def capacities_for(rows: Sequence[int], least: Sequence[int], factor: float) -> list[int]:
    """Return capacities of groups and levels: above their rows, and all different to identify them.

    >>> capacities_for([1000, 1000, 90], [0, 0, 300], 1.25)
    [1280, 1408, 384]
    """
    found: list[int] = []
    for count, other in zip(rows, least, strict=True):
        wanted = max(int(count * factor), count + 1, other)
        capacity = -(-wanted // ALIGNMENT) * ALIGNMENT
        while capacity in found:
            capacity += ALIGNMENT
        found.append(capacity)
    return found


def _mode(call: CallArguments) -> Hashable:
    """Return the part of torch's state that a capture depends on."""
    device = call.device
    kind = "cpu" if device is None else device.type
    lowered = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else None
    return lowered, multiplied_now(), torch.get_float32_matmul_precision()


def _returned(result: Any, call: CallArguments, args: Any, kwargs: Any) -> int | str | None:
    """Return the argument that a network returns, like those that add to a dict; None for none."""
    structure, after = taken_apart((args, kwargs))
    same = structure == call.structure and all(
        one is other for one, other in zip(after, call.leaves, strict=True)
    )
    every: dict[int | str, Any] = {**dict(enumerate(args)), **kwargs}
    if isinstance(result, dict):
        for name, given in every.items():
            if given is result:
                return name
    if not same:
        raise RuntimeError("it writes to its arguments")
    return None


def _into(name: int | str | None, result: Any, args: Any, kwargs: Any) -> Any:
    """Copy the result into the argument that the network returns."""
    if name is None:
        return result
    given = args[name] if isinstance(name, int) else kwargs[name]
    given.clear()
    given.update(result)
    return given


@unloaded_by
def _forget() -> None:
    """Drop all graphs, as they launch kernels that are about to be unloaded."""
    for net in list(_CAPTURED):
        net.reset()
