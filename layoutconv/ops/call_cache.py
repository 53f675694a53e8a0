"""The call cache: bound calls by signature, which is everything a call depends on except data.

A signature has two parts. The key of the dictionary is cheap and coarse: the numbers of a call,
their types, and the numbers of elements. The guard is one C call that compares tensors with those
of an earlier call: dtypes, devices, shapes, strides, and how torch dispatches them.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from marshal import dumps
from typing import TYPE_CHECKING, Any

import torch

from ..base.caches import BoundedCache, footprint, remembered
from ..base.torch_internals import functions_that_look, levels, operators_that_look
from .formulas import has_gradient
from .guard import PLAIN, Guard, guard_of, is_constant, is_plain, wants_gradient

if TYPE_CHECKING:
    from torch import Tensor

    from .epilogue_args import EpilogueArgs

is_dynamo_compiling = torch.compiler.is_dynamo_compiling  # a third of is_compiling's time
is_grad_enabled = torch.is_grad_enabled
_FEW = 16  # signatures per key: shapes with equal element counts, dtypes, memory orders
_NO_ENDING: tuple[Any, ...] = (None, None, None)  # a bias, a scale, a residual
_LATER = 2048  # bytes of the launches that are bound when an entry is first used

Entry = tuple[Guard, "Guard | None", Any]  # without a residual; for it; value


class CallCache(BoundedCache[Hashable, Sequence[Entry]]):
    """A cache of calls by signature, bounded in entries and bytes.

    A call is described by ``numbers``, a tuple of Python values, by ``out_dtype``, and by
    ``input``, ``weight``, ``bias``, ``scale`` and ``residual``; the last three may be None, and
    ``scale`` a number. ``named`` are the tensors of a user's function. Equal numbers of different
    types have different signatures: 1.0 may be refused where 1 is not. A signature says whether
    gradients are recorded. With ``rows``, it leaves out the number of rows of ``input`` and
    ``residual``.

    >>> calls = CallCache("", entries=2, nbytes=10_000)
    >>> call = (3, "relu"), None, torch.ones(2), torch.ones(2), None, None, None
    >>> calls.keep(lambda: "what was found out", *call)
    >>> calls.find(*call)
    'what was found out'
    >>> calls.find((3.0, "relu"), *call[1:]) is None
    True
    """

    def __init__(self, name: str, *, entries: int, nbytes: int, rows: bool = False) -> None:
        super().__init__(name, entries=entries, nbytes=nbytes)
        self.rows = rows

    def find(
        self,
        numbers: tuple[Any, ...],
        out_dtype: torch.dtype | None,
        input: Tensor,
        weight: Tensor,
        bias: Tensor | None = None,
        scale: Tensor | float | None = None,
        residual: Tensor | None = None,
        *named: Tensor,
    ) -> Any:
        """Return the value kept for a call; None without one, or if torch must see the call."""
        # Inlined is_watched_unseen: calling it takes as long as its answers. Of tracers, only
        # torch.compile must be asked for: others are modes, or have tensors of their own.
        if is_dynamo_compiling() or functions_that_look() or operators_that_look():
            return None
        if levels._current_level >= 0 or type(input) not in PLAIN or type(weight) not in PLAIN:
            return None
        if input.is_nested or weight.is_nested:  # torch's guard would crash the process
            return None
        columns: Any = ()
        apart = residual
        if named or not (bias is None and scale is None and residual is None and out_dtype is None):
            if scale is None and residual is None and out_dtype is None:  # the same as ``_apart``
                columns = named
                if bias is not None:
                    numbers, columns = (numbers, None, False, False, True, None), (bias, *named)
            else:
                numbers, columns = _apart(numbers, out_dtype, bias, scale, residual)
                columns = *columns, *named
            for column in columns:
                if type(column) not in PLAIN or column.is_nested:
                    return None
            if apart is not None and (type(apart) not in PLAIN or apart.is_nested):
                return None
        try:
            size = input.size(-1) if self.rows else input.numel()
            key = dumps(numbers, 2), is_grad_enabled(), size, weight.numel()
            for alike, apart_alike, found in self.young.get(key) or self.renewed(key) or ():
                if alike(input, weight, *columns) and (apart is None or apart_alike(apart)):  # type: ignore[misc]
                    return found
        except (ValueError, RuntimeError, IndexError):  # unhashable numbers, no strides, no modes
            pass
        return None

    def keep(
        self,
        make: Callable[[], Any],
        numbers: tuple[Any, ...],
        out_dtype: torch.dtype | None,
        *tensors: Any,
        lowered: bool = False,
    ) -> None:
        """Keep ``make()`` for a call. If torch has to see the call, ``make`` is not called.

        ``tensors`` are those of :meth:`find`. ``lowered``: autocast is on, and nothing else
        intercepts the call.
        """
        input, weight, bias, scale, residual, *named = *tensors, *_NO_ENDING[len(tensors) - 2 :]
        numbers, columns = _apart(numbers, out_dtype, bias, scale, residual)
        together = input, weight, *columns, *named
        # Separate, as it may be the input: torch's guards do not accept a tensor twice.
        alone = () if residual is None else (residual,)
        if lowered or is_plain(*together, *alone):
            self._keep(make, numbers, together, alone)

    def _keep(
        self,
        make: Callable[[], Any],
        numbers: tuple[Any, ...],
        together: tuple[Tensor, ...],
        alone: tuple[Tensor, ...],
    ) -> None:
        try:
            key = self._key(numbers, together[0], together[1])
        except (ValueError, IndexError):  # unmarshallable numbers, no modes
            return
        apart_alike = guard_of(*alone, rows=self.rows) if alone else None
        entry = guard_of(*together, rows=self.rows), apart_alike, make()
        others = list(self.get(key) or ())[: max(1, min(_FEW, self.most_entries // 2)) - 1]
        many, nbytes = self._sizes.get(key, (1, 0))
        nbytes = nbytes // many * len(others) + footprint(key, entry) + _LATER
        self.put(key, [entry, *others], nbytes, 1 + len(others))

    def remember(
        self,
        make: Callable[[], Any],
        numbers: tuple[Any, ...],
        operands: tuple[Tensor, Tensor],
        ending: EpilogueArgs,
        result: Tensor,
    ) -> None:
        """Keep ``make()`` for a call that succeeded, if later calls may bypass the operator.

        ``operands`` are its input and weight.
        """
        if torch.compiler.is_compiling():
            return
        (input, weight), (bias, scale, residual, _, _, out_dtype) = operands, ending
        if not result.numel() or result.is_complex() or not (result.is_cpu or result.is_cuda):
            return
        if self.remembers(numbers, operands, ending):
            self.keep(make, numbers, out_dtype, input, weight, bias, scale, residual)

    def remembers(
        self, numbers: tuple[Any, ...], operands: tuple[Tensor, Tensor], ending: EpilogueArgs
    ) -> bool:
        """Return whether :meth:`remember` keeps a call with a result: not if torch has to see it,
        or to differentiate it. Arguments are as there.
        """
        (input, weight), (bias, scale, residual, activation, slope, _) = operands, ending
        assert activation is None or isinstance(activation, str)  # else the call is bound at once
        there = [t for t in (bias, scale, residual) if isinstance(t, torch.Tensor)]
        if not input.numel() or not all(t.is_contiguous() for t in there if t is not residual):
            return False
        if wants_gradient(input, weight, *there) and not (
            has_gradient(activation, slope) and is_constant(scale)
        ):
            return False
        return is_plain(input, weight, *there) and self.has_key(numbers)

    def has_key(self, numbers: tuple[Any, ...]) -> bool:
        """Return whether calls of these numbers may be kept.

        >>> dense.has_key((3, "same")), dense.has_key((torch.Size([3]),))
        (True, False)
        """
        try:
            return bool(dumps(numbers, 2))
        except ValueError:
            return False

    def _key(self, numbers: tuple[Any, ...], input: Tensor, weight: Tensor) -> Hashable:
        """Return the dictionary's key; as bytes, 1 differs from 1.0 and from True."""
        size = input.size(-1) if self.rows else input.numel()
        return dumps(numbers, 2), is_grad_enabled(), size, weight.numel()


@remembered(64)
def _name(dtype: torch.dtype) -> str:
    return str(dtype)


def _apart(
    numbers: tuple[Any, ...], out_dtype: Any, bias: Any, scale: Any, residual: Any
) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    """Extend the numbers by which other arguments are given; return them, and the columns that are
    (or should be) tensors."""
    number, columns = None, () if bias is None else (bias,)
    if scale is out_dtype is None:  # as the general case below, but faster
        if bias is residual is None:
            return numbers, ()
        return (numbers, None, bias is None, False, residual is None, None), columns
    if scale is not None:
        if type(scale) in (float, int):
            number = scale
        else:
            columns = *columns, scale
    kind = None if out_dtype is None else type(out_dtype) is torch.dtype and _name(out_dtype)
    scaled = scale is not None and number is None
    return (numbers, number, bias is None, scaled, residual is None, kind), columns


# The caches that a call searches before it checks any argument.
dense = CallCache("dense calls", entries=4096, nbytes=16 << 20)
sparse = CallCache("sparse calls", entries=1024, nbytes=8 << 20, rows=True)
