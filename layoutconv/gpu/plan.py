"""Plans of GEMM views on a GPU: a plan binds a view to a compiled kernel; a call runs it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from math import prod
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ..base.caches import put_few
from ..base.memory import maker
from ..base.torch_internals import in_shape
from ..kernels.compile.store import as_argument
from ..planning.kernel_key import index_buffer, runtime_integers
from ..tensors.epilogue_in_torch import FP8
from ..tensors.expected_tensors import expected
from ..view.epilogue import Epilogue
from ..view.gemm_view import GemmView
from ..view.operands import row_major
from . import machines, select
from .depthwise_plan import DTYPES, DotPlan
from .fp32_precision import multiplied_as
from .kernel_source import DeferredKernel, kernel_of, resolved
from .map_views import Buffers, MapPass, MapView, MapViewKind, keep_plan
from .reduction_plan import adder, sum_partials
from .select import ALIGNED, KernelOptions

if TYPE_CHECKING:
    from typing_extensions import Unpack


# Runtime arguments of an epilogue: numbers, and addresses of vectors and of tensors like D. The
# numbers are a tuple, or the result of ``as_argument``.
Reads = tuple[Any, tuple[int, ...] | None, tuple[int, ...] | None]
# Takes a, b and out, the addresses of a and b, and the epilogue's arguments.
Launcher = Callable[["Tensor", "Tensor", "Tensor", int, int, Reads], None]
NOTHING: Reads = (None, None, None)
_address = torch.Tensor.data_ptr
_FEW = 16  # plans per view: combinations of dtypes, epilogues and alignments


def reads_of(
    numbers: tuple[float, ...], vectors: tuple[Tensor, ...], sources: tuple[Tensor, ...]
) -> Reads:
    """Return the numbers, columns and sources of an ``Epilogue`` as arguments of kernels."""
    return (
        numbers or None,
        tuple(map(_address, vectors)) or None,
        tuple(map(_address, sources)) or None,
    )


class Plan:
    """A view, dtypes and a device, bound to a compiled kernel and its integer arguments.

    Calling it only launches, on torch's current stream: ``execute`` has checked shapes, dtypes and
    devices. A kernel takes the memory of its operands: the modes of dense tensors may come in any
    order, as those of a ``channels_last`` tensor do. ``tile`` and ``splits``, the number of split-K
    slices, override the choice, which is a measured one (``layoutconv.tuning``), else the model's.

    Args:
        precision: for float32 "tf32", or "fp32", three products of tf32; for int8 "int4" if an
            element of the view is a pair of numbers.
        atomic: whether split-K slices are added atomically, in any order.
        structure: of the epilogue.
        aligned: bytes that the starts of A, B and D (and of tensors like D) are multiples of.
        sizes: rows and problems that the model chooses for, if not exactly those of the view.
        bind: False for a plan without a kernel, which only says what it would run.

    Raises ``ArgumentTypeError`` for a dtype that the GPU does not support, ``UnsupportedViewError``
    for a view that the template cannot run, and ``DeviceError``, a ``RuntimeError``, for a GPU or a
    driver that cannot run the kernels.
    """

    def __init__(
        self,
        view: GemmView,
        dtype: torch.dtype,
        device: int,
        out_dtype: torch.dtype | None = None,
        *,
        bind: bool = True,
        **asked: Unpack[KernelOptions],
    ) -> None:
        chosen = select.choose_kernel(view, dtype, device, out_dtype, measures=bind, **asked)
        place = view.place
        view, self.spec, self.splits, self._sums, self.machine, self.problem, self.key = chosen
        if place is not None and self.spec.may_be_concurrent:
            self.spec = replace(self.spec, concurrent=True)
        self.tile, self.device = self.spec.tile, device
        self._only_device = torch.cuda.device_count() < 2  # so it is the current one
        self._kernel: Any = kernel_of(view, self.spec) if bind else None
        atomic = asked.get("atomic", False)
        self._parts = 0 if not self.spec.split else 1 if atomic else self.splits
        self._in_bytes = dtype in FP8 or out_dtype in FP8
        self._only_launches = not self._in_bytes and self._only_device
        layouts = view.a, view.b, view.d
        a, b, d = map(index_buffer, layouts)
        # The grid of a persistent kernel has as many CTAs as run at once.
        self._most = self.machine.sm_count * self.spec.ctas_per_sm
        ctas = (self._most,) if self.tile.persistent else ()
        places = (place,) if self.spec.concurrent else ()
        integers = *places, *ctas, *runtime_integers(view).values()
        self._fit(expected(view).d.shape, view.m)
        numbers = self.splits, self._size, *integers
        self._take(layouts, (a, b, d), numbers if self._kernel is None else as_argument(numbers))

    def _fit(self, shape: tuple[int, ...], m: int) -> None:
        self._size = prod(shape)
        if self._parts:
            sums = self._parts * shape[0], *shape[1:]  # with as many modes as D
            self._sums_kind = sums, row_major(sums).stride, self._sums
        self._rows_of_sums = self.spec.rows_of_sums(m, self._most)
        self._adders: dict[Any, Callable[[Tensor, Tensor], None]] = {}  # of slices of this size

    def _take(self, owner: Any, buffers: Buffers | None, integers: Any) -> None:
        """Set the kernel's arguments after its operands, and those of calls without epilogue."""
        self._owner = owner  # keeps the index buffers alive: kernels get their addresses
        self._given = *_addresses(buffers), integers
        self._alone = *self._given, None, None, None, None

    def without_buffers(self) -> Plan:
        """Return the plan without index buffers, for a cache: it keeps no kernel map's memory."""
        made = object.__new__(Plan)
        made.__dict__.update(self.__dict__)
        made._take(None, None, self._given[3])
        return made

    def over(
        self, over: MapPass, m: int, shape: tuple[int, ...], integers: tuple[int, ...]
    ) -> Plan:
        """Return the plan for another pass of the kind, with m rows and D stored as ``shape``."""
        made = object.__new__(Plan)
        made.__dict__.update(self.__dict__)
        made._fit(shape, m)
        # Not ``as_argument``: it pays only after 35 calls.
        made._take(over, over.buffers, (made.splits, made._size, *integers))
        return made

    def launcher(self) -> Launcher:
        """Return the plan's launch, without the checks of a call of the plan."""
        if not self._only_launches:
            return self._launch_anywhere
        return self._launcher(self._given, self._owner)

    def launcher_over(
        self, over: MapPass, m: int, shape: tuple[int, ...], integers: tuple[int, ...]
    ) -> Launcher:
        """Return ``over(...).launcher()`` without making that plan."""
        if self._parts or not self._only_launches:
            return self.over(over, m, shape, integers).launcher()
        return self._launcher(self._given_over(over, shape, integers), over)

    def bound_over(self, over: MapPass, shape: tuple[int, ...], integers: tuple[int, ...]) -> Any:
        """Return the ``bound`` of ``launcher_over(...)`` without making that launcher; None if a
        launch needs more. The caller must keep the pass alive.
        """
        if self._parts or not self._only_launches:
            return None
        if type(self._kernel) is DeferredKernel:
            self._kernel = resolved(self._kernel)
        given = self._given_over(over, shape, integers)
        return self._kernel, given if self.spec.epilogue else (*given, *NOTHING, None)

    def _given_over(
        self, over: MapPass, shape: tuple[int, ...], integers: tuple[int, ...]
    ) -> tuple[Any, ...]:
        a, b, d = over.buffers or (None, None, None)
        return (
            None if a is None else a.data_ptr(),
            None if b is None else b.data_ptr(),
            None if d is None else d.data_ptr(),
            (self.splits, prod(shape), *integers),
        )

    def _launcher(self, given: tuple[Any, ...], owner: Any) -> Launcher:
        """Return a launcher that keeps the owner of index buffers alive.

        Its attribute ``bound`` is the kernel, and its arguments after the operands: up to those of
        the epilogue if there is one, else all. With split-K, which has no epilogue, ``bound`` is a
        function that runs both launches.
        """
        if self._parts:
            in_parts = self._run_in_parts

            def launch_both(
                a: Tensor, b: Tensor, out: Tensor, at_a: int, at_b: int, reads: Reads
            ) -> None:
                in_parts(at_a, at_b, out)

            launch_both.__dict__["bound"] = in_parts, ()
            return launch_both
        if type(self._kernel) is DeferredKernel:
            self._kernel = resolved(self._kernel)
        kernel = self._kernel

        def launch(
            a: Tensor, b: Tensor, out: Tensor, at_a: int, at_b: int, reads: Reads, _: Any = owner
        ) -> None:
            kernel(at_a, at_b, out, *given, *reads, None)

        rest = given if self.spec.epilogue else (*given, *NOTHING, None)
        launch.__dict__["bound"] = kernel, rest
        return launch

    def __call__(
        self,
        a: Tensor,
        b: Tensor,
        out: Tensor,
        epilogue: Epilogue | None = None,
        statistics: Tensor | None = None,
    ) -> None:
        reads, at_a, at_b = NOTHING, a.data_ptr(), b.data_ptr()
        if epilogue is not None:
            reads = reads_of(epilogue.numbers, epilogue.vectors, epilogue.sources)
        if statistics is None:
            self._launch_anywhere(a, b, out, at_a, at_b, reads)
            return
        with torch.cuda.device(self.device):
            size = self._rows_of_sums, statistics.numel()
            parts = torch.empty(size, dtype=torch.float32, device=out.device)
            self._launch(at_a, at_b, out, reads, parts.data_ptr())
            sum_partials(parts, statistics)

    def _launch_anywhere(
        self, a: Tensor, b: Tensor, out: Tensor, at_a: int, at_b: int, reads: Reads
    ) -> None:
        if self._only_device or torch.cuda.current_device() == self.device:
            self._launch(at_a, at_b, out, reads)
            return
        with torch.cuda.device(self.device):
            self._launch(at_a, at_b, out, reads)

    def _launch(
        self, at_a: int, at_b: int, out: Tensor, reads: Reads, statistics: int | None = None
    ) -> None:
        """Launch on the current device."""
        if self._in_bytes:
            out = _as_bytes(out)
        if self._parts:
            self._run_in_parts(at_a, at_b, out)
        else:
            self._kernel(at_a, at_b, out, *self._given, *reads, statistics)

    def _run_in_parts(self, at_a: int, at_b: int, out: Tensor) -> None:
        """Run split-K: slices go to a workspace and are added up in a fixed order."""
        sums = maker(out.device)(*self._sums_kind)
        if self._parts == 1:
            sums.zero_()
        self._kernel(at_a, at_b, sums, *self._alone)
        flat = in_shape(out, (self._size,), (1,))
        if self._parts == 1:
            flat.copy_(sums.view(-1))
            return
        like = out.dtype, flat.data_ptr() & 15
        add = self._adders.get(like)
        if add is None:
            add = self._adders[like] = adder(sums, flat, self._parts)
        add(in_shape(sums, (self._parts * self._size,), (1,)), flat)


def _addresses(buffers: Buffers | None) -> tuple[int | None, ...]:
    """Return the addresses of index buffers."""
    a, b, d = buffers or (None, None, None)
    return (
        None if a is None else a.data_ptr(),
        None if b is None else b.data_ptr(),
        None if d is None else d.data_ptr(),
    )


def execute_gpu(
    view: GemmView,
    a: Tensor,
    b: Tensor,
    out: Tensor,
    epilogue: Epilogue | None = None,
    precision: str | None = None,
    atomic: bool = False,
    statistics: Tensor | None = None,
) -> Tensor:
    """Run a view on its tensors' GPU; ``execute`` has checked them."""
    structure, sources = "", ()
    if epilogue is not None:
        structure, sources = epilogue.structure, epilogue.sources
    dtype, aligned = a.dtype, aligned_to(a, b, out, sources)
    precision = multiplied_as(dtype, precision)
    plan = plan_of(view, dtype, a.get_device(), out.dtype, precision, atomic, structure, aligned)
    plan(a, b, out, epilogue, statistics)
    return out


def plan_of(
    view: GemmView,
    dtype: torch.dtype,
    device: int,
    out_dtype: torch.dtype,
    precision: str | None,
    atomic: bool,
    structure: str,
    aligned: tuple[int, int, int],
) -> Plan | DotPlan:
    """Return the plan for tensors of these dtypes on a device, cached with the view."""
    plans: dict[Any, Plan | DotPlan] = view.kept.get("plans") or view.kept.setdefault("plans", {})
    key = dtype, device, out_dtype, precision, atomic, structure, aligned
    plan = plans.get(key)
    if plan is not None:
        return plan
    if isinstance(view, MapView) and view.kind is not None and max(view.m, view.n) > 1:
        plan = _plan_of_kind(view.kind, view, key)
    elif _is_dots(view, dtype):
        plan = DotPlan(
            view, dtype, device, out_dtype, machines.machine_of(device),
            structure=structure, aligned=aligned,
        )  # fmt: skip
    else:
        plan = _plan(view, key)
    return put_few(plans, key, plan, _FEW)


def forget_plans(view: GemmView) -> None:
    """Drop the plans of a view, so they are chosen again, as after a race."""
    view.kept.pop("plans", None)


def _is_dots(view: GemmView, dtype: torch.dtype) -> bool:
    """Return whether a view is a batch of dot products without index buffers, as in depthwise
    passes.

    The template runs the gathered ones, such as pairs of rows of one channel. It also runs groups
    with one filter each over one voxel in 8 bits, which the CUDA-core kernels do not multiply.
    """
    if view.m != 1 or view.n != 1 or len(view.a.shape) != 3:
        return False
    if dtype not in DTYPES and not isinstance(view.a.shape[2], tuple):
        return False
    return all(index_buffer(layout) is None for layout in (view.a, view.b, view.d))


def _plan(view: GemmView, key: tuple[Any, ...], sizes: tuple[int, int] | None = None) -> Plan:
    dtype, device, out_dtype, precision, atomic, structure, aligned = key
    return Plan(
        view, dtype, device, out_dtype, precision=precision or "tf32", atomic=atomic,
        structure=structure, aligned=aligned, sizes=sizes,
    )  # fmt: skip


def launcher_of(plan: Plan | DotPlan) -> Launcher:
    """Return the function that launches a plan with the least host overhead."""
    return plan.launcher() if isinstance(plan, Plan) else plan.launch


def launcher_over(kind: MapViewKind, over: MapPass, key: tuple[Any, ...]) -> Launcher:
    """Return the launcher for a pass of a kind; if its kind and size are known, without making its
    view.
    """
    numbers = over.numbers
    (m, n, _, stored), of_class, integers = kind.sizes_of(numbers)
    if m > 1 or n > 1:
        plan: Plan | None = kind.plans.get((key, of_class))
        if plan is not None:
            return plan.launcher_over(over, m, stored, integers)
    return launcher_of(plan_of(kind.view(over), *key))


def bound_over(kind: MapViewKind, over: MapPass, key: tuple[Any, ...]) -> Any:
    """Return the kernel of a pass of a kind, and its arguments after the operands, if its kind and
    size are known; else None.
    """
    (m, n, _, stored), of_class, integers = kind.sizes_of(over.numbers)
    plan: Plan | None = kind.plans.get((key, of_class)) if m > 1 or n > 1 else None
    return None if plan is None else plan.bound_over(over, stored, integers)


def _plan_of_kind(kind: MapViewKind, view: MapView, key: tuple[Any, ...]) -> Plan:
    """Return a view's plan, shared by its kind and size class except for index buffers."""
    sizes, over = kind.sizes(view), view.over
    plan: Plan | None = kind.plans.get((key, sizes))
    if plan is not None:
        return plan.over(over, view.m, expected(view).d.shape, kind.integers(over.numbers))
    plan = _plan(view, key, sizes)
    if plan.tile.halo_taps == 1:
        keep_plan(kind, (key, sizes), plan.without_buffers())
    return plan


def aligned_to(
    a: Tensor, b: Tensor, out: Tensor, sources: tuple[Tensor, ...] = ()
) -> tuple[int, int, int]:
    """Return the bytes, up to 16, that the starts of the operands are multiples of.

    ``sources`` are read at the same element offsets as D, and have their own element size.
    """
    at_a, at_b, at_d = a.data_ptr(), b.data_ptr(), out.data_ptr()
    for source in sources:
        at_d |= source.data_ptr() * out.itemsize // source.itemsize
    if (at_a | at_b | at_d) & 15 == 0:
        return ALIGNED
    return tuple(min(16, p & -p if p else 16) for p in (at_a, at_b, at_d))  # type: ignore[return-value]


def _as_bytes(tensor: Tensor) -> Tensor:
    """Return an fp8 tensor as bytes, the form that kernels take."""
    return tensor.view(torch.uint8) if tensor.dtype in FP8 else tensor
