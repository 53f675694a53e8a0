"""The training of an example's network, and a report on its losses."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from layoutconv.base.progress import Progress


def descend(
    net: nn.Module, loss_of: Callable[[int], Tensor], steps: int, rate: float
) -> list[float]:
    """Train by Adam, up to ``rate`` and down again; return the losses ``loss_of(step)``."""
    for module in net.modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            module.momentum = 0.3  # what a batch norm keeps is to forget the first of a few steps
    optimizer = torch.optim.Adam(net.parameters())
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, rate, max(2, steps))
    losses = []
    with Progress().step("Training") as progress:
        for step in range(steps):
            loss = loss_of(step)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
            losses.append(loss.item())
            progress.name = f"Training, loss {losses[-1]:.3f}"
            progress.tick(step + 1, steps)
    return losses


def fell(losses: list[float]) -> bool:
    """Report whether the last third of the losses is below the first."""
    third = max(1, len(losses) // 3)
    first, last = (sum(part) / third for part in (losses[:third], losses[-third:]))
    shown = losses[:: max(1, len(losses) // 8)]
    verdict = "ok" if last < first else "FAILED"
    print(f"  loss      {' '.join(f'{loss:.3f}' for loss in shown)} ... {losses[-1]:.3f}")
    print(f"  check     mean of the first third {first:.3f}, of the last {last:.3f}, {verdict}")
    return last < first
