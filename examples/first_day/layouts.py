"""A layout user's first day: describe, cut, compose, invert, look, and find what banks collide.

python layouts.py [FOLDER FOR PICTURES]
"""

from __future__ import annotations

import sys
from pathlib import Path

import layoutconv as lc


def main(folder: Path) -> None:
    """Print what each operation makes of a matrix, and draw three of the results."""
    matrix = lc.Layout((32, 64), (64, 1))
    print("row-major", matrix, "at (2, 5):", matrix(2, 5))

    tiles = lc.zipped_divide(matrix, (8, 16))
    print("tiles    ", tiles)
    print("one tile ", lc.local_tile(matrix, (8, 16), (1, 2)))

    columns = matrix @ lc.Layout((64, 32), (32, 1))
    print("columns  ", lc.coalesce(columns), "inverse", lc.right_inverse(columns))

    plain = lc.Layout((8, 8), (8, 1))
    swizzled = lc.composition(lc.Swizzle(3, 0, 3), plain)
    for name, layout in {"plain": plain, "swizzled": swizzled}.items():
        column = [int(layout(i, 0)) % 8 for i in range(8)]
        print(f"{name:9} banks of a column: {column}, {len(set(column))} of 8")

    atom = lc.mma_atom("m16n8k16.f16")
    for name, drawn in {"tiles": tiles, "swizzled": swizzled, "mma": atom}.items():
        drawn.draw().save(folder / f"{name}.svg")
    print("pictures ", *sorted(path.name for path in folder.glob("*.svg")))


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "."))
