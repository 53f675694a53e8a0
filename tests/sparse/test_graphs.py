"""Calls that torch.compile traces reach no kernel of ours."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from layoutconv.sparse.coords import graphs


@pytest.mark.parametrize(("gpu", "traced"), [(True, True), (True, False), (False, True)])
def test_maps_that_are_still_to_be_made_are_refused(
    gpu: bool, traced: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: traced)
    tensor: Any = SimpleNamespace(is_cuda=gpu)
    if gpu and traced:
        with pytest.raises(RuntimeError, match="`kernel_map`: expected one that has run before"):
            graphs.refuse_in_graphs(tensor)
    else:
        graphs.refuse_in_graphs(tensor)
