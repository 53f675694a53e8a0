"""Changes to the template while it is traced, and that the machine, or a result, shows them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from layoutconv.view.gemm_view import GemmView
from tools.ptx_sim import Fault

from .launcher import Case, check_exact, compile_view, run_case

Patch = pytest.MonkeyPatch
Mutation = Callable[[Patch], None]


def replace(owner: Any, name: str, make: Callable[[Any], Any]) -> Mutation:
    """Put ``make(original)`` in the place of ``owner.name``."""
    return lambda patch: patch.setattr(owner, name, make(getattr(owner, name)))


def put(owner: Any, name: str, value: Any) -> Mutation:
    """Put a value in the place of ``owner.name``, whatever it is."""
    return replace(owner, name, lambda _: value)


def check_fault(mutation: Mutation, view: GemmView, *of: Any, **options: Any) -> None:
    """A kernel that is compiled with a mutation is refused by the machine, or wrong.

    ``of`` are a dtype of data and what else ``compile_view`` takes; ``options`` those of
    ``run_case``.
    """
    with pytest.MonkeyPatch.context() as patch:
        mutation(patch)
        dtype, _, _, *out = of
        case, compiled = Case.of(view, dtype, *out), compile_view(view, *of)
        with pytest.raises((Fault, AssertionError)):
            check_exact(case, run_case(case, compiled, **options))
