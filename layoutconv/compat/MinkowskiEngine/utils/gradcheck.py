"""torch's check of gradients, for a function that has ``apply``."""

from __future__ import annotations

from typing import Any

from torch.autograd.gradcheck import gradcheck as _gradcheck

__all__ = ["gradcheck"]


def gradcheck(
    func: Any,
    inputs: Any,
    eps: float = 1e-6,
    atol: float = 1e-5,
    rtol: float = 1e-3,
    raise_exception: bool = True,
    check_sparse_nnz: bool = False,
    **options: Any,
) -> bool:
    """Compare the gradients of ``func.apply(*inputs)`` with finite differences.

    ``options`` are those of :func:`torch.autograd.gradcheck`; ``check_sparse_nnz`` has no effect.

    >>> import torch
    >>> from ..sparse_matrix_functions import MinkowskiSPMMFunction
    >>> place, mat = torch.tensor([0, 1]), torch.ones(2, 3).double().requires_grad_()
    >>> gradcheck(MinkowskiSPMMFunction, (place, place, torch.ones(2).double(), (2, 2), mat))
    True
    """
    options.update(eps=eps, atol=atol, rtol=rtol, raise_exception=raise_exception)
    return bool(_gradcheck(lambda *given: func.apply(*given), inputs, **options))
