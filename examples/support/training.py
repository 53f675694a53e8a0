"""A report on the losses of a training."""

from __future__ import annotations


def fell(losses: list[float]) -> bool:
    """Report whether the last third of the losses is below the first."""
    third = max(1, len(losses) // 3)
    first, last = (sum(part) / third for part in (losses[:third], losses[-third:]))
    shown = losses[:: max(1, len(losses) // 8)]
    verdict = "ok" if last < first else "FAILED"
    print(f"  loss      {' '.join(f'{loss:.3f}' for loss in shown)} ... {losses[-1]:.3f}")
    print(f"  check     mean of the first third {first:.3f}, of the last {last:.3f}, {verdict}")
    return last < first
