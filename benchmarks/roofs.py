"""Rooflines of GPUs: products and bytes in a microsecond, from the vendor's data sheets.

Dense products on tensor cores, sums in fp32 (int32 for int8). ``fp32`` stands for three products of
tf32, which is what the template makes of it.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Roof:
    """Peak rates of a GPU: flop per microsecond by type, and bytes of memory per microsecond."""

    flop: dict[str, float]
    bandwidth: float

    def floor(self, dtype: str, flop: float, moved: float) -> float | None:
        """Microseconds that so many flop and bytes take at least; None for types not known."""
        if dtype not in self.flop:
            return None
        return max(flop / self.flop[dtype], moved / self.bandwidth)


def _roof(bandwidth: float, fp16: float, tf32: float, int8: float, fp8: float = 0.0) -> Roof:
    """From TB/s, and from TFLOP/s of each type."""
    flop = {"fp16": fp16, "bf16": fp16, "tf32": tf32, "fp32": tf32 / 3, "int8": int8}
    flop |= {"e4m3": fp8, "e5m2": fp8} if fp8 else {}
    return Roof({dtype: 1e6 * number for dtype, number in flop.items()}, 1e6 * bandwidth)


_ROOFS = {
    "A100": _roof(1.555, 312, 156, 624),
    "A100-SXM4-80GB": _roof(2.039, 312, 156, 624),
    "RTX 3090": _roof(0.936, 71, 35.5, 284),
    "RTX 4090": _roof(1.008, 165, 82.5, 660, 330),
    "H100": _roof(3.35, 990, 495, 1979, 1979),
    "H100 PCIe": _roof(2.0, 756, 378, 1513, 1513),
    "H200": _roof(4.8, 990, 495, 1979, 1979),
}


def roof_of(gpu: str) -> Roof | None:
    """The limits of a GPU by torch's name of it; None if they are not known here.

    The longest name that is part of it counts, so that variants can have limits of their own.
    """
    known = [name for name in _ROOFS if name in gpu]
    return _ROOFS[max(known, key=len)] if known else None
