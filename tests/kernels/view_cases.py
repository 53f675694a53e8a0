"""Views that several tests of kernels run."""

from __future__ import annotations

from typing import Any

from layoutconv.conv import ConvProblem
from layoutconv.planning.halo_reuse import widened
from layoutconv.view.gemm_view import GemmView


def wide(view: GemmView) -> GemmView:
    """Return a view whose rows several taps share: halo reuse."""
    found = widened(view)
    assert found is not None
    return found


def conv(x: Any, w: Any, groups: int, **rest: Any) -> ConvProblem:
    """Return a grouped convolution, of padding 1 by default."""
    return ConvProblem(x, w, groups=groups, **{"padding": 1} | rest)
