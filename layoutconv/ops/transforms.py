"""The passes of a dense convolution under ``torch.func`` and forward-mode differentiation.

``torch.autograd`` only needs an operator with a backward formula; ``torch.func.grad``, ``vmap``,
``jvp`` and their compositions need a :class:`torch.autograd.Function` that also has a rule for
tangents and one for batches. The three passes provide these for each other:

- each is linear in both its tensors, so a tangent is the sum of two passes of its kind, and a
  gradient is another pass, to any order;
- a batch of problems is one problem of more images, more channels or more groups, not a loop.

Tensors and numbers are those of the operators in ``dense_operators``, without the epilogue.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from ..base.torch_internals import levels, transforms_look
from ..tensors.epilogue_in_torch import convert
from .dense_operators import conv_dgrad, conv_fprop, conv_wgrad, of_dgrad, of_fprop, of_wgrad
from .formulas import PassArguments, PassRunner, as_inputs

if TYPE_CHECKING:
    from torch import Tensor


def is_transformed() -> bool:
    """Return whether a ``torch.func`` transform, or forward mode, sees computations.

    >>> is_transformed(), torch.vmap(lambda x: x + is_transformed())(torch.zeros(1))
    (False, tensor([1.]))
    """
    return transforms_look() or levels._current_level >= 0


class _BatchPlace(NamedTuple):
    """The place of a batch of problems in a tensor: mode 0 or 1, inside each group or not.

    >>> _BatchPlace(1).into(torch.zeros(5, 2, 6, 8), 0, groups=3).shape
    torch.Size([2, 30, 8])
    """

    mode: int
    in_groups: bool = False

    def into(self, tensor: Tensor, batch: int, groups: int) -> Tensor:
        """Merge mode ``batch`` of a tensor into the place."""
        mode, groups = self.mode, groups if self.in_groups else 1
        rest = tensor.movedim(batch, 0)
        split = torch.unflatten(rest, mode + 1, (groups, rest.shape[mode + 1] // groups))
        return split.movedim(0, mode + 1).flatten(mode, mode + 2)

    def out_of(self, tensor: Tensor, size: int, groups: int) -> Tensor:
        """Invert :meth:`into`: the batch, of ``size``, becomes the first mode."""
        mode, groups = self.mode, groups if self.in_groups else 1
        split = torch.unflatten(tensor, mode, (groups, size, tensor.shape[mode] // (groups * size)))
        return split.movedim(mode + 1, 0).flatten(mode + 1, mode + 2)


_FIRST, _SECOND = _BatchPlace(0), _BatchPlace(1)  # modes of images or filters, and of channels
_FIRST_OF_GROUPS, _SECOND_OF_GROUPS = _BatchPlace(0, True), _BatchPlace(1, True)


class _Folds(NamedTuple):
    """The places of a batch in a pass's tensors and in its result, by which tensors are batched.

    If both are, problems become groups, outside the existing ones.
    """

    of_first: tuple[_BatchPlace, _BatchPlace]
    of_second: tuple[_BatchPlace, _BatchPlace]
    of_both: tuple[_BatchPlace, _BatchPlace, _BatchPlace]


class _Pass(torch.autograd.Function):
    """A pass as a function of two tensors, the operator's numbers, and the result's dtype.

    Attributes:
        operator: of torch, which computes the pass.
        described: returns the formula of its operator.
        folds: places of batches.
    """

    operator: Any
    described: Any
    folds: _Folds

    @classmethod
    def forward(cls, *inputs: Any) -> Any:
        *of, out_dtype = inputs
        return cls.operator(*of, out_dtype=out_dtype)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        a, b, *numbers, _ = inputs
        ctx.save_for_backward(a, b)
        ctx.save_for_forward(a, b)
        ctx.numbers, ctx.out_dtype = tuple(numbers), output.dtype

    @classmethod
    def backward(cls, ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        """Return gradients by the operator's formula, which can be transformed again."""
        a, b = ctx.saved_tensors
        formula, over = cls.described(a, b, *ctx.numbers)
        needed = ctx.needs_input_grad
        found = formula(TRANSFORMED, over, needed, convert(grad, a.dtype), a, b)
        return *as_inputs(found, a.dtype), *[None] * (len(needed) - 2)

    @classmethod
    def jvp(cls, ctx: Any, da: Any, db: Any, *_: Any) -> Any:
        """Return the tangent of the result, from the tensors' tangents."""
        a, b = ctx.saved_tensors
        found = None
        for one, other in ((da, b), (a, db)):
            if one is not None and other is not None:
                part = cls.apply(one, other, *ctx.numbers, ctx.out_dtype)  # type: ignore[no-untyped-call]
                found = part if found is None else found + part
        return found

    @classmethod
    def vmap(cls, info: Any, in_dims: Any, *inputs: Any) -> Any:
        """Compute a batch of problems, in which one tensor, or both, is batched."""
        a, b, *numbers, groups, executor, out_dtype = inputs
        size, (at_a, at_b, *_) = info.batch_size, in_dims
        of_result = groups
        if at_b is None:
            of_a, place = cls.folds.of_first
            a = of_a.into(a, at_a, groups)
        elif at_a is None:
            of_b, place = cls.folds.of_second
            b = of_b.into(b, at_b, groups)
        else:
            of_a, of_b, place = cls.folds.of_both
            a, b = of_a.into(a, at_a, groups), of_b.into(b, at_b, groups)
            groups = groups * size
        y = cls.apply(a, b, *numbers, groups, executor, out_dtype)  # type: ignore[no-untyped-call]
        return place.out_of(y, size, of_result), 0


class Fprop(_Pass):
    """The forward pass, from ``x`` (N, C, ...) and ``w`` (K, C / groups, ...)."""

    operator, described = staticmethod(conv_fprop), staticmethod(of_fprop)
    folds = _Folds(
        (_FIRST, _FIRST), (_FIRST_OF_GROUPS, _SECOND_OF_GROUPS), (_SECOND, _FIRST, _SECOND)
    )


class Dgrad(_Pass):
    """The gradient of ``x``, or the transposed convolution, from ``y`` (N, K, ...) and ``w``."""

    operator, described = staticmethod(conv_dgrad), staticmethod(of_dgrad)
    folds = _Folds((_FIRST, _FIRST), (_SECOND, _SECOND_OF_GROUPS), (_SECOND, _FIRST, _SECOND))


class Wgrad(_Pass):
    """The gradient of ``w``, from ``y`` (N, K, ...) and ``x`` (N, C, ...)."""

    operator, described = staticmethod(conv_wgrad), staticmethod(of_wgrad)
    folds = _Folds(
        (_SECOND_OF_GROUPS, _FIRST_OF_GROUPS),
        (_SECOND_OF_GROUPS, _SECOND),
        (_SECOND, _SECOND, _FIRST),
    )

    @classmethod
    def forward(cls, *inputs: Any) -> Any:
        *of, _ = inputs  # its operator has a single result dtype
        return cls.operator(*of)


def _fprop(over: PassArguments, x: Tensor, w: Tensor) -> Any:
    return Fprop.apply(x, w, *over.fprop, None)  # type: ignore[no-untyped-call]


def _dgrad(over: PassArguments, y: Tensor, w: Tensor) -> Any:
    return Dgrad.apply(y, w, *over.dgrad, None)  # type: ignore[no-untyped-call]


def _wgrad(over: PassArguments, y: Tensor, x: Tensor) -> Any:
    return Wgrad.apply(y, x, *over.wgrad, None)  # type: ignore[no-untyped-call]


TRANSFORMED = PassRunner(_fprop, _dgrad, _wgrad)
