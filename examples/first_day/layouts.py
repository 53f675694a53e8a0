"""A layout user's first day: tile, compose, invert and draw a layout; find its bank conflicts.

python layouts.py [FOLDER FOR PICTURES]
"""

from __future__ import annotations

import sys
from pathlib import Path

import layoutconv as lc


def main(folder: Path) -> None:
    """Print the result of each operation on a matrix, and draw three of the results."""
    matrix = lc.Layout((32, 64), (64, 1))
    print("row-major", matrix, "maps (2, 5) to offset", matrix(2, 5))

    tiles = lc.zipped_divide(matrix, (8, 16))
    print("tiles    ", tiles, "is (a tile of 8 x 16, the grid of tiles)")
    tile, start = lc.local_tile(matrix, (8, 16), (1, 2))
    print("tile (1, 2)", tile, "starts at offset", start)

    transposed = matrix @ lc.Layout((64, 32), (32, 1))  # (j, i) -> number of (i, j) -> offset
    print("transposed", transposed, "in memory order:", lc.coalesce(transposed))
    print("offset 133 has the linear index", lc.right_inverse(matrix)(133), "which is 2 + 32 * 5")

    plain = lc.Layout((8, 8), (8, 1))
    swizzled = lc.composition(lc.Swizzle(3, 0, 3), plain)
    for name, layout in {"plain": plain, "swizzled": swizzled}.items():
        column = [int(layout(i, 0)) % 8 for i in range(8)]
        print(f"{name:9} a column is in banks {column}: {len(set(column))} of 8")

    atom = lc.mma_atom("m16n8k16.f16")
    for name, drawn in {"tiles": tiles, "swizzled": swizzled, "mma": atom}.items():
        drawn.draw().save(folder / f"{name}.svg")
    print("pictures ", *sorted(path.name for path in folder.glob("*.svg")))


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "."))
