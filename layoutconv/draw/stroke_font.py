"""A small font of pen strokes, drawn at any size with smooth edges.

A glyph is strokes apart by ``|``; a stroke is points, two digits in base 36 each: x to the right, y
down, capitals from y = 0 to the base line at y = 12, small letters from y = 4, tails to y = 16. The
corners of a stroke that starts with ``~`` are rounded; one whose last point is its first is closed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from ..caches import BoundedCache, kept_in, remembered

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

_GLYPH_MASKS: BoundedCache[Any, Floats] = BoundedCache(
    "glyphs of drawings", entries=1024, nbytes=4 << 20
)
_CAP_HEIGHT = 12
_BELOW = 5  # room under the base line, for tails and half a pen
_GAP = 3.2  # between two glyphs
_SPACE = 4.0

_GLYPHS = {
    "A": "0c 40 8c|19 79", "B": "00 0c|~00 50 71 75 56 06|~06 56 78 7a 5c 0c",
    "C": "~82 60 20 02 0a 2c 6c 8a", "D": "00 0c|~00 40 83 89 4c 0c", "E": "70 00 0c 7c|06 56",
    "F": "70 00 0c|06 56", "G": "~82 60 20 02 0a 2c 6c 8a 87|87 57", "H": "00 0c|80 8c|06 86",
    "I": "00 0c", "J": "~50 5a 3c 1c 0a", "K": "00 0c|80 07|35 8c", "L": "00 0c 7c",
    "M": "0c 00 58 a0 ac", "N": "0c 00 8c 80", "O": "~20 60 82 8a 6c 2c 0a 02 20",
    "P": "00 0c|~00 60 81 86 67 07", "Q": "~20 60 82 8a 6c 2c 0a 02 20|58 8d",
    "R": "00 0c|~00 60 81 86 67 07|47 8c", "S": "~72 50 20 02 04 26 56 78 7a 5c 2c 0a",
    "T": "00 80|40 4c", "U": "~00 0a 2c 6c 8a 80",
    "V": "00 4c 80", "W": "00 3c 53 7c a0", "X": "00 8c|80 0c", "Y": "00 46 80|46 4c",
    "Z": "00 80 0c 8c",
    "a": "~15 34 54 66 6c|~67 27 08 0b 2c 4c 6a", "b": "00 0c|~06 24 54 76 7a 5c 2c 0a",
    "c": "~65 54 24 06 0a 2c 5c 6b", "d": "70 7c|~76 54 24 06 0a 2c 5c 7a",
    "e": "08 78|~78 76 54 24 06 0a 2c 5c 7b", "f": "~60 30 22 2c|04 54",
    "g": "~74 7e 5g 2g 0f|~76 54 24 06 0a 2c 5c 7a", "h": "00 0c|~06 24 54 76 7c",
    "i": "04 0c|01 01", "j": "~24 2e 1g 0g|21 21", "k": "00 0c|64 09|38 6c", "l": "~00 0a 1c 2c",
    "m": "04 0c|~06 14 44 56 5c|~56 64 94 a6 ac", "n": "04 0c|~06 24 54 76 7c",
    "o": "~24 54 76 7a 5c 2c 0a 06 24", "p": "04 0g|~06 24 54 76 7a 5c 2c 0a",
    "q": "74 7g|~76 54 24 06 0a 2c 5c 7a", "r": "04 0c|~07 24 44",
    "s": "~65 54 14 05 07 18 58 69 6b 5c 1c 0b", "t": "~21 2a 3c 5c|04 54",
    "u": "~04 0a 2c 5c 7a|74 7c", "v": "04 3c 64", "w": "04 3c 56 7c a4", "x": "04 6c|64 0c",
    "y": "04 3c|64 3c 1g", "z": "04 64 0c 6c",
    "0": "~20 50 72 7a 5c 2c 0a 02 20", "1": "13 40 4c", "2": "~02 20 50 72 74 57 0c|0c 7c",
    "3": "~02 20 50 71 75 56 36|~36 56 77 7b 5c 2c 0a", "4": "50 09 79|50 5c",
    "5": "60 10 06|~06 25 55 77 7a 5c 2c 0b", "6": "~61 40 20 03 0a 2c 5c 7a 78 56 26 08",
    "7": "00 70 3c", "8": "~20 50 71 75 56 26 05 01 20|~26 56 77 7b 5c 2c 0b 07 26",
    "9": "~1b 3c 5c 79 72 50 20 02 04 26 56 74",
    ".": "0c 0c", ",": "1c 0e", ":": "06 06|0c 0c", "-": "08 48", "+": "08 68|35 3b",
    "–": "08 68", "=": "06 66|0a 6a", "(": "~30 03 0b 3e", ")": "~00 33 3b 0e", "/": "60 0d",
    "%": "80 0c|~10 30 41 43 34 14 03 01 10|~58 78 89 8b 7c 5c 4b 49 58", "|": "00 0e",
    "<": "65 08 6b", ">": "05 68 0b", "×": "05 6b|65 0b", "±": "06 66|33 39|0c 6c", "·": "07 07",
    "→": "08 98|65 98 6b", "²": "~01 20 31 33 06|06 46", "³": "00 40 22|~22 44 36 06",
    "_": "0d 7d", "'": "00 03", "?": "~02 20 50 72 74 47 49|4c 4c", "[": "30 00 0e 3e",
    "]": "00 30 3e 0e", "*": "33 39|04 68|64 08", "µ": "~04 0a 2c 5c 7a|74 7c|04 0g",
}  # fmt: skip


def text_mask(text: str, height: float, weight: float = 1.0) -> Floats:
    """How much of each pixel the pen covers, float64 (rows, columns) in [0, 1].

    Args:
        text: one line. A character that the font lacks is drawn as a question mark.
        height: of a capital, in pixels. The base line is row ``round(height) + 2``.
        weight: of the pen, relative to the usual.

    >>> mask = text_mask("L", height=24)
    >>> bool(mask[10, 2] > 0.9), bool(mask[10, 10] > 0)
    (True, False)
    """
    scale = height / _CAP_HEIGHT
    pen = max(1.25, 0.115 * height) * weight
    edge = int(np.ceil(pen / 2)) + 1
    glyphs, at = [], 0.0
    for character in text:
        if character == " ":
            at += _SPACE + _GAP
            continue
        _, width = _segments(character)
        # Glyphs start at quarters of a pixel: even spacing, and few masks to keep.
        left = round(4 * at * scale) / 4
        glyphs.append((int(left), _glyph_mask(character, scale, pen, edge, left % 1)))
        at += width + _GAP
    columns = max([int(at * scale) + 2 * edge, *(x + m.shape[1] for x, m in glyphs)])
    mask = np.zeros((int((_CAP_HEIGHT + _BELOW) * scale) + 2 * edge, columns))
    for x, glyph in glyphs:
        part = mask[:, x : x + glyph.shape[1]]
        np.maximum(part, glyph, out=part)
    return mask


@kept_in(_GLYPH_MASKS)
def _glyph_mask(character: str, scale: float, pen: float, edge: int, shift: float) -> Floats:
    segments, width = _segments(character)
    start, end = (segments[:, i] * scale + edge + (shift, 0) for i in (0, 1))
    rows = int((_CAP_HEIGHT + _BELOW) * scale) + 2 * edge
    columns = int(width * scale) + 2 * edge + 2
    y, x = np.mgrid[:rows, :columns] + 0.5
    pixels = np.stack([x, y], axis=-1)[:, :, None]
    along = end - start
    length = np.maximum((along**2).sum(-1), 1e-9)
    nearest = (((pixels - start) * along).sum(-1) / length).clip(0, 1)[..., None]
    distance = np.hypot(*np.moveaxis(pixels - start - nearest * along, -1, 0)).min(-1)
    return (pen / 2 - distance + 0.5).clip(0, 1)


@remembered(256)
def _segments(character: str) -> tuple[Floats, float]:
    """Straight pieces (pieces, 2, 2) of a glyph, and its width, in units of the font."""
    strokes = []
    for stroke in _GLYPHS.get(character, _GLYPHS["?"]).split("|"):
        points = [(int(p[0], 36), int(p[1], 36)) for p in stroke.lstrip("~").split()]
        line = np.array(points, dtype=float)
        strokes.append(_rounded(line) if stroke.startswith("~") else line)
    pieces = np.concatenate([np.stack([line[:-1], line[1:]], axis=1) for line in strokes])
    return pieces, float(pieces[..., 0].max())


def _rounded(line: Floats) -> Floats:
    """Cut all corners, three times (Chaikin 1974); the ends of an open line stay where they are."""
    closed = bool((line[0] == line[-1]).all())
    for _ in range(3):
        cut = np.stack([0.75 * line[:-1] + 0.25 * line[1:], 0.25 * line[:-1] + 0.75 * line[1:]], 1)
        inner = cut.reshape(-1, 2)
        line = np.vstack([inner, inner[:1]] if closed else [line[:1], inner, line[-1:]])
    return line
