"""torch's batch norms and losses over the rows of a padded cloud that have a cell.

A graph has as many rows as its bucket. Functions of one row at a time need not know which are
padding; a mean over rows does.
"""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

import torch
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from ..errors import ArgumentError, ArgumentTypeError, check_choice
from ..gpu.row_norm import Norm
from ..sparse.coords.no_tensor import NoTensor
from .row_norm import batch_norm

if TYPE_CHECKING:
    from torch import Tensor

_rows_there: ContextVar[Callable[[int], Tensor | None] | None] = ContextVar(
    "rows_there", default=None
)


def reduce_cells(values: Tensor, input: Any, reduction: str = "mean") -> Tensor:
    """Return the mean or the sum of ``values`` (rows, ...) over the rows of a sparse tensor that
    have a cell; with "none" return all rows, zeros where a row has no cell.

    It reduces over all elements, like torch's losses. Use it in :func:`graphed_step` for a loss
    that torch has no function for: in a graph ``input`` has more rows than cells. For a tensor
    without padding it is ``values.mean()`` or ``values.sum()``.

    Raises :class:`~layoutconv.errors.ArgumentError` if ``values`` has another number of rows, and
    for an unknown reduction.

    >>> from ..sparse import SparseTensor
    >>> x = SparseTensor.from_dense(torch.tensor([[[1.0], [3.0]]]))
    >>> reduce_cells(x.features, x), reduce_cells(x.padded(8).features + 1, x.padded(8), "sum")
    (tensor(2.), tensor(6.))
    """
    if not isinstance(input, NoTensor):
        raise ArgumentTypeError("input", "a sparse tensor", type(input).__name__)
    if not isinstance(values, torch.Tensor):
        raise ArgumentTypeError("values", "a torch tensor", type(values).__name__)
    cells = input.coordinates
    if values.shape[:1] != cells.cells.shape[:1]:
        expected = f"({len(cells.cells)}, ...), a row for each of input"
        raise ArgumentError("values", expected, tuple(values.shape))
    check_choice("reduction", reduction, ("mean", "sum", "none"), "mean, sum or none")
    if cells.padded:
        return _reduced(values, cells.cells[:, 0] >= 0, reduction)
    return values if reduction == "none" else getattr(values, reduction)()


class CountedRows(TorchFunctionMode):
    """A mode in which torch's batch norms and losses leave out rows without a cell.

    Fused norms in training, which do not call torch's function, ask :func:`rows_there`.

    Args:
        there: returns, for a number of rows, which of them have a cell, bool (rows,); None if no
            cloud has that many. It is called once for each cloud.

    >>> there = torch.tensor([True, True, False])
    >>> x, labels = torch.tensor([[1.0, 0], [0, 1], [9, 9]]), torch.tensor([0, 1, 0])
    >>> with CountedRows(lambda rows: there if rows == 3 else None):
    ...     functional.mse_loss(x, x + 1), functional.cross_entropy(x, labels)
    (tensor(1.), tensor(0.3133))
    """

    misses_nothing = True  # norms that bypass it ask by themselves

    def __init__(self, there: Callable[[int], Tensor | None]) -> None:
        super().__init__()
        self._of, self._known = there, dict[int, "Tensor"]()
        self._tokens: list[Any] = []

    def __enter__(self) -> CountedRows:
        self._tokens.append(_rows_there.set(self._there))
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *error: object) -> None:
        super().__exit__(*error)  # type: ignore[no-untyped-call]
        _rows_there.reset(self._tokens.pop())

    def _there(self, rows: int) -> Tensor | None:
        found = self._known.get(rows)
        if found is None:
            found = self._of(rows)
            if found is not None:
                self._known[rows] = found
        return found

    def __torch_function__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        counted = _COUNTED.get(function)
        first = args[0] if args else kwargs.get("input")
        if counted is not None and isinstance(first, torch.Tensor) and first.dim():
            there = self._there(first.shape[0])
            if there is not None:
                return counted(there, function, *args, **kwargs)
        return function(*args, **kwargs)


def rows_there(rows: int) -> Tensor | None:
    """Return which of so many rows have a cell, bool (rows,), inside a :class:`CountedRows`; None
    if all rows count.

    >>> with CountedRows(lambda rows: torch.ones(rows, dtype=torch.bool)):
    ...     rows_there(2)
    tensor([True, True])
    >>> rows_there(2) is None
    True
    """
    there = _rows_there.get()
    return None if there is None else there(rows)


class WithoutDropout(TorchFunctionMode):
    """A mode in which torch's dropout returns its input: padded rows would change its random draws.

    >>> with WithoutDropout():
    ...     torch.nn.Dropout(0.9)(torch.ones(2))
    tensor([1., 1.])
    """

    misses_nothing = True  # no launch drops anything

    def __torch_function__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if function in _DROPOUT:
            return args[0] if args else kwargs["input"]
        return function(*args, **kwargs)


def gradients_of_cells(features: Tensor, there: Tensor | None) -> Tensor:
    """Return features (rows, ...) that pass gradients only to rows in ``there``, bool (rows,).

    >>> x = torch.ones(2, 1, requires_grad=True)
    >>> gradients_of_cells(x, torch.tensor([True, False])).sum().backward()
    >>> x.grad.T
    tensor([[1., 0.]])
    """
    if there is None or not features.requires_grad:
        return features
    return features.where(_beside(there, features), features.detach())


def _beside(there: Tensor, values: Tensor) -> Tensor:
    return there.view(-1, *(1,) * (values.dim() - 1))


def _only(values: Tensor, there: Tensor) -> Tensor:
    """Set other rows to zero, in the values and in their gradient."""
    return values.where(_beside(there, values), 0)


# -- torch's functions, with torch's arguments -----------------------------------------------------


def _norm(
    there: Tensor, function: Any, input: Tensor, running_mean: Any, running_var: Any,
    weight: Any = None, bias: Any = None, training: bool = False, momentum: float = 0.1,
    eps: float = 1e-5,
) -> Tensor:  # fmt: skip
    if not training or input.dim() != 2:
        found: Tensor = function(
            input, running_mean, running_var, weight, bias, training, momentum, eps
        )
        return found
    running = None if running_mean is None else (running_mean, running_var)
    return batch_norm(input, Norm(weight, bias, running, momentum, eps, there))


def _of_classes(
    there: Tensor, function: Any, input: Tensor, target: Tensor, weight: Any = None,
    size_average: Any = None, ignore_index: int = -100, reduce: Any = None,
    reduction: str = "mean", **more: Any,
) -> Tensor:  # fmt: skip
    """Compute a loss that can ignore a class: rows without a cell get the ignored class."""
    if target.is_floating_point():  # probabilities
        probabilities = _only(target, there)
        values = function(_only(input, there), probabilities, weight, reduction="none", **more)
        return _reduced(values, there, reduction)
    target = target.where(_beside(there, target), ignore_index)
    found: Tensor = function(
        _only(input, there), target, weight, size_average, ignore_index, reduce, reduction, **more
    )
    return found


def _of_elements(
    there: Tensor, function: Any, input: Tensor, target: Tensor, *more: Any,
    reduction: str = "mean", **options: Any,
) -> Tensor:  # fmt: skip
    options = {name: value for name, value in options.items() if value is not None}
    if more or "reduce" in options or "size_average" in options:
        found: Tensor = function(input, target, *more, reduction=reduction, **options)
        return found
    values = function(_only(input, there), _only(target, there), reduction="none", **options)
    return _reduced(values, there, reduction)


def _reduced(values: Tensor, there: Tensor, reduction: str) -> Tensor:
    values = _only(values, there)
    if reduction == "none":
        return values
    total = values.sum()
    return total if reduction == "sum" else total / (there.sum() * values[0].numel())


_COUNTED: dict[Any, Callable[..., Tensor]] = {
    functional.batch_norm: _norm,
    functional.cross_entropy: _of_classes,
    functional.nll_loss: _of_classes,
    functional.mse_loss: _of_elements,
    functional.l1_loss: _of_elements,
    functional.smooth_l1_loss: _of_elements,
    functional.huber_loss: _of_elements,
    functional.binary_cross_entropy: _of_elements,
    functional.binary_cross_entropy_with_logits: _of_elements,
}
_DROPOUT = {
    getattr(functional, name)
    for name in (
        "alpha_dropout", "dropout", "dropout1d", "dropout2d", "dropout3d", "feature_alpha_dropout",
    )
}  # fmt: skip
