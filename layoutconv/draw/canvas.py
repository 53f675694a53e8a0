"""A picture being painted: colours from 0 to 1, rectangles and text blended in."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

import numpy as np

from .stroke_font import text_mask

if TYPE_CHECKING:
    from numpy.typing import NDArray

Colour = Sequence[float]


def colour(code: str) -> tuple[float, float, float]:
    """Red, green, blue from 0 to 1 of a code such as ``"#ff8000"``."""
    r, g, b = (int(code[i : i + 2], 16) / 255 for i in (1, 3, 5))
    return r, g, b


class Canvas:
    """Pixels, float64 (height, width, 3), that start as one colour."""

    def __init__(self, width: int, height: int, background: Colour) -> None:
        self.pixels = np.empty((height, width, 3))
        self.pixels[:] = background

    def rectangle(
        self, x: float, y: float, width: float, height: float, paint: Colour, opacity: float = 1.0
    ) -> None:
        """Fill an upright rectangle whose edges may lie between pixels."""
        across = _coverage(self.pixels.shape[1], x, x + width)
        down = _coverage(self.pixels.shape[0], y, y + height)
        rows, columns = np.flatnonzero(down), np.flatnonzero(across)
        if len(rows) and len(columns):
            part = np.s_[rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1]
            alpha = opacity * np.outer(down[part[0]], across[part[1]])
            self._blend(part, alpha, paint)

    def text(
        self,
        x: float,
        y: float,
        text: str,
        height: float,
        paint: Colour,
        align: Literal["left", "centre", "right"] = "left",
        weight: float = 1.0,
    ) -> None:
        """Write a line whose base line is at ``y``, capitals ``height`` pixels tall."""
        mask = text_mask(text, height, weight)
        shift = {"left": 0.0, "centre": 0.5, "right": 1.0}[align] * mask.shape[1]
        left, top = round(x - shift), round(y - height) - 2
        rows, columns = self.pixels.shape[:2]
        mask = mask[max(0, -top) : max(0, rows - top), max(0, -left) : max(0, columns - left)]
        top, left = max(0, top), max(0, left)
        self._blend(np.s_[top : top + mask.shape[0], left : left + mask.shape[1]], mask, paint)

    def image(self, x: int, y: int, pixels: NDArray[np.float64]) -> None:
        """Put pixels (h, w, 3) with their upper left corner at (x, y); they must fit."""
        self.pixels[y : y + pixels.shape[0], x : x + pixels.shape[1]] = pixels

    def to_uint8(self) -> NDArray[np.uint8]:
        """The picture as uint8 (height, width, 3)."""
        return np.rint(self.pixels.clip(0, 1) * 255).astype(np.uint8)

    def _blend(self, part: tuple[slice, slice], alpha: NDArray[np.float64], paint: Colour) -> None:
        below = self.pixels[part]
        below += alpha[..., None] * (np.asarray(paint) - below)


def _coverage(size: int, start: float, end: float) -> NDArray[np.float64]:
    """How much of each of ``size`` unit cells lies between ``start`` and ``end``."""
    edges = np.arange(size + 1)
    return np.clip(np.minimum(edges[1:], end) - np.maximum(edges[:-1], start), 0, 1)
