"""Runs in float64 whose operations round as a narrow type does: how far rounding moves results.

A network passes rounding errors on, and norms magnify them: no bound that holds for every network
says anything about one. So the network itself is asked. ``Rounding`` multiplies what each operation
of torch reads and returns, in the forward pass and in backward, by ``1 + u r`` with random ``r`` in
[-1, 1], ``u`` the unit of a type, and rounds results of half types to them, so that what is too
small for them is lost. A few such runs, each with other ``r``, are samples of what a correct
implementation in that type may return: one that sums in another order, fuses operations (and so
rounds less often) or splits them is as far from the exact result as they are. ``FACTOR`` times the
greatest distance of the samples, in half types ``HALF_FACTOR``, is the limit, for each tensor by
itself.

It is fair: a sum of ``n`` products whose factors are off by ``u r`` is off by about ``u S2``, as
with products rounded one at a time, and a gradient that is zero but for rounding, a bias's before a
norm, is as much noise in the samples as in the result. It is not loose: the factor is 16, of
deviations that for float64 are near 1e-15 of the numbers; every fault that changes a number by
more than rounding does shows. Distances are maxima over a tensor, of all its elements.

Where an activation has a kink, or two elements of a pool's window are nearly equal, rounding may
switch a gradient on or off, which few samples show. A result beyond the limit is therefore compared
once more, with many samples; if rounding alone does switch there, about half of them do.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map_only

from .limits import LEAST, UNITS
from .oracle import WrongResultError

FACTOR, HALF_FACTOR, SAMPLES, MORE = 64.0, 8.0, 3, 24
Record = dict[str, Tensor]


class Rounding(TorchDispatchMode):
    """Operations on float64 round as those on ``dtype``, or with a coarser ``unit``."""

    def __init__(self, dtype: torch.dtype, unit: float, seed: int) -> None:
        super().__init__()
        self._dtype, self._unit = dtype, unit
        self._random = torch.Generator().manual_seed(seed)
        self._half = dtype in (torch.float16, torch.bfloat16)

    def _noise(self, t: Tensor) -> Tensor:
        return 1 + self._unit * (2 * torch.rand(t.shape, generator=self._random).double() - 1)

    def _moved(self, t: Tensor) -> Tensor:
        return t * self._noise(t) if t.is_floating_point() and t.numel() else t

    def _rounded(self, t: Tensor) -> Tensor:
        moved = self._moved(t)
        return moved.to(self._dtype).double() if self._half and t.is_floating_point() else moved

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        schema = func._schema
        writes = any(a.alias_info is not None for a in schema.arguments)
        if writes or func.namespace != "aten" or not _computes(func):
            found = func(*args, **(kwargs or {}))
            if schema.is_mutable and isinstance(found, Tensor) and found.is_floating_point():
                found.copy_(self._rounded(found))
            return found
        name = func._schema.name
        if "norm" in name and "backward" not in name:
            args = self._before_norm(name, args)
        else:
            args = tree_map_only(Tensor, self._moved, args)
        found = tree_map_only(Tensor, self._rounded, func(*args, **(kwargs or {})))
        return self._with_terms(found, func, args) if "norm_backward" in name else found

    def _before_norm(self, name: str, args: Any) -> Any:
        """Return what a norm reads; it writes to its running statistics, which stay themselves.

        A variance may be the difference of a mean square and a squared mean, as torch's group norm
        of ``channels_last`` images has it, and is then off by a rounding of these.
        """
        x, *rest = args
        if "batch_norm" in name:
            rows = x.transpose(0, 1).reshape(x.shape[1], -1)
        elif "group_norm" in name:
            rows = x.reshape(args[3] * args[6], -1)
        else:
            return (self._moved(x), *rest)
        mean, square = rows.mean(1, keepdim=True), rows.square().mean(1, keepdim=True)
        variance = rows.var(1, keepdim=True, correction=0)
        off = (self._noise(mean) - 1) * square / variance.clamp(min=1e-300)
        rows = mean + (rows - mean) * (1 + off.clamp(-0.5, 0.5))
        if "batch_norm" in name:
            moved = rows.reshape(x.shape[1], x.shape[0], *x.shape[2:]).transpose(0, 1)
        else:
            moved = rows.reshape(x.shape)
        moved = self._moved(moved).contiguous()
        return (moved, *(tree_map_only(Tensor, self._moved, rest[:2])), *rest[2:])

    def _with_terms(self, found: Any, func: Any, args: Any) -> Any:
        """Gradients of a norm with the rounding of what cancels in them.

        They are differences of terms, which may be as large as the gradient of another result of
        the same size: that of other signs.
        """
        signs = torch.rand(args[0].shape, generator=self._random).double().round() * 2 - 1
        terms = func(args[0] * signs, *args[1:])
        return tuple(
            value if value is None else self._rounded(value + (self._noise(t) - 1) * t)
            for value, t in zip(found, terms, strict=True)
        )


def _computes(func: Any) -> bool:
    """Return whether an operation does more than make, move or copy numbers."""
    name = func._schema.name.removeprefix("aten::")
    return name not in (
        "clone", "_to_copy", "detach", "cat", "zeros_like", "empty_like", "ones_like", "new_zeros",
        "zeros", "empty", "index", "constant_pad_nd", "fill",
    )  # fmt: skip


def distances(samples: list[Record], exact: Record) -> dict[str, float]:
    """The greatest distance of samples from the exact result, of each tensor."""
    return {
        name: max(_distance(sample[name], value) for sample in samples)
        for name, value in exact.items()
    }


def _distance(one: Tensor, other: Tensor) -> float:
    return float((one - other).abs().max()) if other.numel() else 0.0


def compare(
    got: Record,
    exact: Record,
    dtype: torch.dtype,
    sample: Callable[[int], Record],
    cells: frozenset[str] = frozenset(),
) -> dict[str, float]:
    """The worst error over its limit, of each tensor; raises ``WrongResultError``.

    Args:
        got, exact: float64, by name. A name that one of them lacks is an error.
        sample: a run with the rounding of a number.
        cells: names whose tensors have to be equal.
    """
    if set(got) != set(exact):
        raise WrongResultError(f"results {sorted(set(got) ^ set(exact))} are not in both")
    for name in exact:
        if got[name].shape != exact[name].shape:
            shapes = tuple(got[name].shape), tuple(exact[name].shape)
            raise WrongResultError(f"{name}: shape {shapes[0]}, not {shapes[1]}")
    samples = [sample(number) for number in range(SAMPLES)]
    over = _over(got, exact, samples, dtype)
    if any(value > 1 for value in over.values()):
        samples += [sample(number) for number in range(SAMPLES, MORE)]
        over = _over(got, exact, samples, dtype)
    for name, value in over.items():
        if value > 1 or (name in cells and not torch.equal(got[name], exact[name])):
            raise WrongResultError(_where(name, got[name], exact[name], value), value)
    return over


def _over(
    got: Record, exact: Record, samples: list[Record], dtype: torch.dtype
) -> dict[str, float]:
    found, factor = {}, HALF_FACTOR if dtype.itemsize == 2 else FACTOR
    for name, most in distances(samples, exact).items():
        finite = bool(exact[name].isfinite().all()) and most < float("inf")
        size = float(exact[name].abs().max()) if exact[name].numel() else 0.0
        limit = factor * most + 4 * UNITS[dtype] * size + LEAST[dtype]
        distance = _distance(got[name], exact[name])
        found[name] = distance / limit if finite else 0.0
        if finite and distance != distance:
            found[name] = float("inf")
    return found


def _where(name: str, got: Tensor, exact: Tensor, over: float) -> str:
    error = (got - exact).abs().nan_to_num(float("inf"))
    first = int(error.reshape(-1).argmax())
    place = tuple(int(i) for i in torch.unravel_index(torch.tensor(first), error.shape))
    worst = f"{float(got[place]):.9g}, not {float(exact[place]):.9g}"
    return f"{name}: {over:.3g} times its limit, most at {place}: {worst}"
