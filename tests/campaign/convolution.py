"""The part of a problem that dense and sparse convolutions have in common."""

from __future__ import annotations

from dataclasses import dataclass, field

from .ending import Ending


@dataclass(frozen=True, kw_only=True)
class Convolution:
    """From C channels to K by taps, with what follows the sums, and how it is called.

    Args:
        seed: of the numbers in tensors, and of a cloud.
        precision: of float32, "tf32" or "fp32".
        padding: (near, far) of each mode.
        gradients: with respect to what.
        start_x: elements that memory starts past a multiple of 16 bytes.
        numbers: "exact", "normal", or "rounded": integers of more bits than tf32 has.
    """

    seed: int
    dtype: str
    C: int
    K: int
    taps: tuple[int, ...]
    stride: tuple[int, ...]
    dilation: tuple[int, ...]
    padding: tuple[tuple[int, int], ...]
    output_padding: tuple[int, ...] = ()
    groups: int = 1
    precision: str = "tf32"
    ending: Ending = field(default_factory=Ending)
    gradients: tuple[str, ...] = ()
    call: str = "function"
    start_x: int = 0
    numbers: str = "exact"

    @property
    def type(self) -> str:
        """The type of data, and how it is multiplied."""
        return f"float32 as {self.precision}" if self.dtype == "float32" else self.dtype
