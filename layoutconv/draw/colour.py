"""Colour maps for a dark page: even steps of lightness through a few hues.

They are interpolated in OKLab, where equal distances look equally far apart (B. Ottosson, "A
perceptual color space for image processing", 2020), and lightness only ever rises, so a picture
reads the same to eyes that tell few hues apart, and in grey.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ..caches import remembered

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

# First and last lightness; chroma and hue (degrees) at equal steps of lightness between them.
_MAPS = {
    "lagoon": (
        (0.42, 0.96),
        ((0.13, 285), (0.14, 262), (0.12, 225), (0.13, 175), (0.15, 128), (0.09, 105)),
    ),
    "ember": (
        (0.36, 0.97),
        ((0.11, 290), (0.18, 328), (0.20, 8), (0.18, 42), (0.15, 75), (0.06, 100)),
    ),
}

_LMS = np.array(
    [
        [1.0, 0.3963377774, 0.2158037573],
        [1.0, -0.1055613458, -0.0638541728],
        [1.0, -0.0894841775, -1.2914855480],
    ]
)
_RGB = np.array(
    [
        [4.0767416621, -3.3077115913, 0.2309699292],
        [-1.2684380046, 2.6097574011, -0.3413193965],
        [-0.0041960863, -0.7034186147, 1.7076147010],
    ]
)


def colours(values: Floats, name: str) -> Floats:
    """The colours, (..., 3) from 0 to 1, of values from 0 to 1 on the map ``lagoon`` or ``ember``.

    >>> colours(np.array([0.0, 1.0]), "lagoon").sum(axis=-1).round(1)
    array([1.1, 2.6])
    """
    table = _table(name)
    return table[np.rint(np.clip(values, 0, 1) * (len(table) - 1)).astype(np.intp)]


@remembered(16)
def _table(name: str, steps: int = 512) -> Floats:
    (first, last), anchors = _MAPS[name]
    chroma, hue = np.array(anchors).T
    at, knots = np.linspace(0, 1, steps), np.linspace(0, 1, len(anchors))
    angle = np.unwrap(np.radians(hue))
    a, b = (np.interp(at, knots, chroma * trig(angle)) for trig in (np.cos, np.sin))
    smooth = np.hanning(steps // 6)  # no kinks at the anchors
    lightness = np.linspace(first, last, steps)
    lab = np.stack([lightness, *(_convolve(c, smooth) for c in (a, b))], axis=1)
    return _srgb((lab @ _LMS.T) ** 3 @ _RGB.T)


def _convolve(curve: Floats, window: Floats) -> Floats:
    half = len(window) // 2
    padded = np.pad(curve, (half, len(window) - 1 - half), mode="edge")
    return np.convolve(padded, window / window.sum(), mode="valid")


def _srgb(linear: Floats) -> Floats:
    linear = linear.clip(0, 1)
    return np.where(linear > 0.0031308, 1.055 * linear ** (1 / 2.4) - 0.055, 12.92 * linear)
