"""Bound launches: keep the plans of a known call, choose one by memory alignment, launch it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial, reduce
from itertools import repeat
from math import prod
from operator import or_
from typing import TYPE_CHECKING, Any

import torch

from ..base.caches import put_few
from ..base.memory import maker
from ..conv.k_major_filter import k_major_view
from ..kernels.compile.store import as_argument
from ..view.epilogue import Epilogue, Pointwise
from ..view.gemm_view import GemmView
from .filter_choice import reads_k_major, worth_k_major
from .fp32_precision import multiplied_now
from .k_major_copy import k_major_copy
from .kernel_source import DeferredKernel
from .map_passes import MapTables, k_major_over
from .map_views import PLANS, MapPass, kind_of_pass, representative
from .plan import NOTHING, Launcher, aligned_to, bound_over, launcher_of, launcher_over, plan_of
from .select import ALIGNED

if TYPE_CHECKING:
    from torch import Tensor


_address = torch.Tensor.data_ptr
_FEW = 16  # combinations of precision and alignment that a call meets
# A known plan over maps: kernel, slices, function from numbers to integers, trailing arguments.
Known = tuple[Any, int, Callable[..., tuple[int, ...]], tuple[Any, ...]]


class BoundLaunch:
    """Views that together write a result, bound to dtypes, a GPU and an epilogue's structure.

    Args:
        views: makes the views, for the memory of ``a``, ``b`` and the result. They are made on
            demand because bound launches no longer need them, and they take several times as much
            memory.
        a: the first operand, or a tensor like it.
        out_dtype: the dtype of the result.
        epilogue: an epilogue with the structure and the numbers of those in calls.
        allocate: allocates the results of calls; None if :meth:`run` gets them.
        filter: the shape of ``b`` in the order of memory, (K, *taps, C / groups), if ``b`` is a
            filter to copy to K-major first, where kernels read only K-major operands.

    Kernels also depend on the precision of float32 and on memory alignment; both are checked at
    every call.
    """

    # Fast paths for aligned memory: (kernel, arguments) of each launch of a call whose precision
    # cannot change, without an epilogue; and that of a single launch with one.
    _bound_any: Any = None
    _bound_epilogue: Any = None
    _empty = False

    def __init__(
        self,
        views: Callable[[], Sequence[GemmView]],
        a: Tensor,
        out_dtype: torch.dtype,
        epilogue: Epilogue | None,
        filter: tuple[int, ...] = (),
        allocate: Callable[[], Tensor] | None = None,
    ) -> None:
        self.views, self.out_dtype, self.filter = views, out_dtype, filter
        self.allocate: Any = allocate
        self.dtype, self.device, self.place = a.dtype, a.get_device(), a.device
        self.make = maker(a.device)
        self.structure = "" if epilogue is None else epilogue.structure
        numbers = () if epilogue is None else epilogue.numbers
        self.numbers = as_argument(numbers) if numbers else None
        # With another dtype than D's, a residual has other byte offsets.
        added = () if epilogue is None else epilogue.sources
        self.differs = int(any(source.dtype is not out_dtype for source in added))
        # Key of the plans for aligned memory, if it is the same at every call.
        kinds = self.dtype, self.device, out_dtype, None, False, self.structure, ALIGNED
        self._kept_for = None if a.dtype is torch.float32 else kinds
        self._launchers: dict[Any, tuple[Launcher, ...]] = {}
        self._k_major: dict[str, bool] = {}  # by how float32 is multiplied
        # By the same key, for aligned memory only: kernels, and their arguments after the operands.
        self._bound: dict[str | None, list[Any]] = {}
        self.known: dict[Any, Known] = {}  # by kind and size class of maps

    def result(
        self,
        a: Tensor,
        b: Tensor,
        bias: Tensor | None = None,
        scale: Tensor | float | None = None,
        residual: Tensor | None = None,
        function: Pointwise | None = None,
    ) -> Tensor:
        """Launch, and return the result in new memory; the tensors are as for :meth:`run`."""
        bound = self._bound_any
        if bound is not None:
            at_a, at_b = a.data_ptr(), b.data_ptr()
            if not (at_a | at_b) & 15:
                out: Tensor = self.allocate()
                for kernel, rest in bound:
                    kernel(at_a, at_b, out, *rest)
                return out
        columns: tuple[Tensor, ...]
        sources: tuple[Tensor, ...] = ()
        if scale is None and residual is None and function is None:  # as ``_reads`` has it
            columns = () if bias is None else (bias,)
        else:
            columns, sources = _reads(bias, scale, residual, function)
        if self._bound_epilogue is not None:
            return self.followed(a, b, columns, sources)
        out = self.allocate()
        if not self._empty:
            self._launch(a, b, out, columns, sources)
        return out

    def followed(
        self, a: Tensor, b: Tensor, columns: tuple[Tensor, ...], sources: tuple[Tensor, ...]
    ) -> Tensor:
        """Return what :meth:`result` does, for an epilogue whose tensors are in the kernel's order.

        ``columns`` are scale, bias and a function's columns; ``sources``, a residual and a
        function's sources.
        """
        out: Tensor = self.allocate()
        if self._bound_epilogue is None:
            if not self._empty:
                self._launch(a, b, out, columns, sources)
            return out
        at_a, at_b, added = a.data_ptr(), b.data_ptr(), None
        starts = at_a | at_b
        if sources:
            added = (*map(_address, sources),)
            starts = reduce(or_, added, starts | self.differs)
        if starts & 15:
            self._launch(a, b, out, columns, sources)
            return out
        kernel, given = self._bound_epilogue
        reads = self.numbers, (*map(_address, columns),) or None, added
        kernel(at_a, at_b, out, *given, *reads, None)
        return out

    def run(
        self,
        a: Tensor,
        b: Tensor,
        out: Tensor,
        bias: Tensor | None = None,
        scale: Tensor | float | None = None,
        residual: Tensor | None = None,
        function: Pointwise | None = None,
    ) -> None:
        """Launch on tensors whose memory matches the views: contiguous in their order.

        ``out`` shares no memory with others and starts at a multiple of 16 bytes. ``function`` is
        the last step, with the structure and the numbers of the epilogue's.
        """
        self._launch(a, b, out, *_reads(bias, scale, residual, function))

    def _launch(
        self,
        a: Tensor,
        b: Tensor,
        out: Tensor,
        columns: tuple[Tensor, ...],
        sources: tuple[Tensor, ...],
    ) -> None:
        at_a, at_b = a.data_ptr(), b.data_ptr()
        starts = at_a | at_b
        precision = multiplied_now() if self.dtype is torch.float32 else None
        if precision in self._bound and not starts & 15:
            for kernel, rest in self._bound[precision]:
                kernel(at_a, at_b, out, *rest)
            return
        if self.filter and precision is not None and self._reads_k_major(a, precision):
            b = k_major_copy(b, self.filter)
            at_b = b.data_ptr()
        reads = NOTHING
        if self.structure:
            added: tuple[int, ...] | None = None
            if sources:
                added = (*map(_address, sources),)
                starts = reduce(or_, added, starts | self.differs)
            reads = self.numbers, (*map(_address, columns),) or None, added
        aligned = aligned_to(a, b, out, sources) if starts & 15 else ALIGNED
        key = precision, aligned
        launchers = self._launchers.get(key)
        if launchers is None:
            launchers = self._bind(
                (
                    self.dtype, self.device, self.out_dtype, precision, False, self.structure,
                    aligned,
                )
            )  # fmt: skip
            self._keep_launchers(key, launchers)
        for launch in launchers:
            launch(a, b, out, at_a, at_b, reads)

    def _keep_launchers(self, key: tuple[str | None, Any], launchers: tuple[Launcher, ...]) -> None:
        """Keep launchers, and bound kernels if launches of aligned memory need nothing else.

        Launchers of a dry run are not kept, so the next call binds real kernels.
        """
        bound = [*map(getattr, launchers, repeat("bound"), repeat(None))]
        if any(each is not None and type(each[0]) is DeferredKernel for each in bound):
            return
        if len(self._launchers) >= _FEW:
            self._launchers.clear()
        self._launchers[key] = launchers
        precision, aligned = key
        if aligned == ALIGNED and not (self.filter and precision is not None) and None not in bound:
            self._keep(precision, bound)

    def _keep(self, precision: str | None, bound: list[Any]) -> None:
        if not self.structure:
            self._bound[precision] = bound
            if precision is None:
                self._bound_any = bound
        elif precision is None and len(bound) == 1:
            (self._bound_epilogue,) = bound

    def _bind(self, of: tuple[Any, ...]) -> tuple[Launcher, ...]:
        """Return the launchers of the plans for the key ``of``."""
        views = self.views()
        if self._k_major.get(of[3]):
            views = tuple(map(k_major_view, views))
        return tuple(launcher_of(plan_of(view, *of)) for view in views)

    def _reads_k_major(self, a: Tensor, precision: str) -> bool:
        """Return whether ``b`` must be copied to K-major before it is multiplied with ``a``."""
        found = self._k_major.get(precision)
        if found is None:
            found = self._k_major[precision] = reads_k_major(a, precision)
        return found


def _reads(
    bias: Tensor | None,
    scale: Tensor | float | None,
    residual: Tensor | None,
    function: Pointwise | None,
) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
    """Return the columns and the sources that a kernel reads, in its order."""
    columns: tuple[Tensor, ...] = ()
    sources = () if residual is None else (residual,)
    if scale is not None and isinstance(scale, torch.Tensor):
        columns = (scale,)
    if bias is not None:
        columns = *columns, bias
    if function is not None:
        columns = *columns, *function.columns.values()
        sources = *sources, *function.sources.values()
    return columns, sources


class MapPassLaunch(BoundLaunch):
    """The launch of one pass over a kernel map, on contiguous tensors.

    Its view is made only for the first pass of a kind and size.

    Args:
        of: the launch for all maps; its ``filter`` is copied to K-major only for large maps.
        over: the pass.
        shape, stride, device: of the result.
    """

    def __init__(
        self,
        of: BoundLaunch,
        over: MapPass,
        shape: tuple[int, ...],
        stride: tuple[int, ...],
        device: torch.device,
    ) -> None:
        self.__dict__.update(of.__dict__)
        self._launchers, self._over, self._kind = {}, over, kind_of_pass(over)
        self._k_major, self._bound = {}, {}
        if of.filter:
            rows, channels = shape[0], shape[-1]
            if not worth_k_major(rows, of.filter, channels // of.filter[-1], over_map=True):
                self.filter = ()
        self.allocate = partial(maker(device), shape, stride, of.out_dtype)
        self._empty = 0 in shape
        if self._kind is None:
            self.views = partial(_alone, over)
        elif self._kept_for is not None and not self._empty:
            bound = bound_over(self._kind, over, self._kept_for)
            if bound is not None and type(bound[0]) is not DeferredKernel:
                self._keep(None, [bound])

    def _bind(self, of: tuple[Any, ...]) -> tuple[Launcher, ...]:
        if self._kind is None:
            return super()._bind(of)
        if not self._k_major.get(of[3]):
            return (launcher_over(self._kind, self._over, of),)
        over = k_major_over(self._over)
        kind = kind_of_pass(over)
        if kind is None:
            return (launcher_of(plan_of(over.view(), *of)),)
        return (launcher_over(kind, over, of),)


class RecordedMapPass:
    """The launch of a pass over a new kernel map by a recorded plan: only the tables are new.

    ``describe`` makes the pass only if unaligned memory needs another plan.
    """

    __slots__ = "_describe", "_like", "_of", "_tables", "_usual", "given", "kernel"
    _usual: MapPassLaunch | None

    def __init__(
        self,
        of: BoundLaunch,
        describe: Callable[[MapTables], MapPass],
        known: Known,
        tables: MapTables,
        shape: tuple[int, ...],
        stride: tuple[int, ...],
    ) -> None:
        self._of, self._describe, self._tables = of, describe, tables
        self._like, self._usual = (shape, stride, of.out_dtype), None
        self.kernel, splits, integers, rest = known
        numbers = splits, prod(shape), *integers(tables.numbers)
        self.given = *tables.addresses, numbers, *rest  # type: ignore[misc]

    @property
    def usual(self) -> MapPassLaunch:
        """The launch for memory of any alignment."""
        if self._usual is None:
            of, (shape, stride, _) = self._of, self._like
            self._usual = MapPassLaunch(of, self._describe(self._tables), shape, stride, of.place)
        return self._usual

    def result(
        self,
        a: Tensor,
        b: Tensor,
        bias: Tensor | None = None,
        scale: Tensor | float | None = None,
        residual: Tensor | None = None,
        function: Pointwise | None = None,
    ) -> Tensor:
        """Return what :meth:`BoundLaunch.result` does."""
        if self._of.structure:
            if scale is None and residual is None and function is None:  # as ``_reads`` has it
                return self.followed(a, b, () if bias is None else (bias,), ())
            return self.followed(a, b, *_reads(bias, scale, residual, function))
        at_a, at_b = a.data_ptr(), b.data_ptr()
        if (at_a | at_b) & 15:
            return self.usual.result(a, b)
        out: Tensor = self._of.make(*self._like)
        self.kernel(at_a, at_b, out, *self.given)
        return out

    def followed(
        self, a: Tensor, b: Tensor, columns: tuple[Tensor, ...], sources: tuple[Tensor, ...]
    ) -> Tensor:
        """Return what :meth:`BoundLaunch.followed` does, for an epilogue with a structure."""
        of, at_a, at_b, added = self._of, a.data_ptr(), b.data_ptr(), None
        starts = at_a | at_b
        if sources:
            added = (*map(_address, sources),)
            starts = reduce(or_, added, starts | of.differs)
        if starts & 15:
            return self.usual.followed(a, b, columns, sources)
        out: Tensor = of.make(*self._like)
        at_columns = (*map(_address, columns),) or None
        self.kernel(at_a, at_b, out, *self.given, of.numbers, at_columns, added, None)
        return out


def launch_over_map(
    of: BoundLaunch,
    describe: Callable[[MapTables], MapPass],
    tables: MapTables,
    shape: tuple[int, ...],
    stride: tuple[int, ...],
) -> MapPassLaunch | RecordedMapPass:
    """Return the launch of ``describe``'s pass over a map with these tables; the result is on the
    device of ``of``.

    All calls with one ``of`` must have the same ``describe``.
    """
    if tables.addresses is None:
        return MapPassLaunch(of, describe(tables), shape, stride, of.place)
    key = tables.kind, representative(tables.size)
    known = of.known.get(key)
    if known is not None:
        return RecordedMapPass(of, describe, known, tables, shape, stride)
    made = MapPassLaunch(of, describe(tables), shape, stride, of.place)
    bound = made._bound_epilogue or (made._bound_any and made._bound_any[0])
    if bound is not None and made._kind is not None:
        kernel, (_, _, _, numbers, *rest) = bound
        if numbers[1] == prod(shape):
            integers = made._kind._integers or made._kind.integers
            known = kernel, numbers[0], integers, tuple(rest)
            put_few(of.known, key, known, PLANS)
    return made


def _alone(over: MapPass) -> tuple[GemmView]:
    return (over.view(),)
