"""Second derivatives of norms on a GPU, beside float64 on a CPU."""

from __future__ import annotations

from copy import deepcopy

import torch
from torch import Tensor, nn


def check_second_derivatives(norm: nn.Module, x: Tensor) -> None:
    """Check those of the squares of a norm's images, by the images and its parameters."""
    results = []
    for module, leaf in (norm, x), (deepcopy(norm).double().cpu(), x.double().cpu()):
        leaf = leaf.detach().requires_grad_()
        leaves = leaf, *module.parameters()
        grads = torch.autograd.grad(module(leaf).square().sum(), leaves, create_graph=True)
        results.append(torch.autograd.grad(sum(g.square().sum() for g in grads), leaves))
    for found, expected in zip(*results, strict=True):
        limit = 1e-3 * expected.abs().max().item()
        torch.testing.assert_close(found.cpu().double(), expected, rtol=1e-3, atol=limit)
