"""CUDA graphs of networks of other libraries' names: tensors without bounds are none of a graph."""

from __future__ import annotations

from importlib import import_module

import pytest
import torch

import layoutconv as lc


@pytest.mark.parametrize("library", ["MinkowskiEngine", "torchsparse"])
def test_tensors_without_bounds_are_computed_as_eagerly_and_the_report_says_so(library):
    module = import_module(f"layoutconv.compat.{library}")
    if library == "MinkowskiEngine":
        layer = module.MinkowskiConvolution(3, 4, kernel_size=3, dimension=3)
    else:
        layer = import_module(f"{module.__name__}.nn").Conv3d(3, 4, 3)
    cells = torch.unique(torch.randint(0, 4, (30, 4)) * torch.tensor([0, 1, 1, 1]), dim=0).int()
    x = module.SparseTensor(torch.randn(len(cells), 3), cells)
    with torch.no_grad():
        graph = lc.nn.graphed(layer.eval())
        assert torch.equal(graph(x).F, layer(x).F)
    (reason,) = graph.report().eager
    assert reason == f"an argument is a tensor of {library}, which has no bounds"
