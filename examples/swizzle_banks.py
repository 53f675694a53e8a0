"""Count the bank conflicts of a tile in shared memory; search for the swizzle that has none.

    python examples/swizzle_banks.py [--columns 64] [--output swizzle_banks.svg]

A tile of fp16 is copied into shared memory row by row, 16 bytes per thread, and read by
`ldmatrix`, which reads 16 bytes of eight rows at a time. In plain rows, these eight are in the
same banks. Padding the rows avoids that but costs memory. A swizzle costs none: it XORs the number
of a 16-byte chunk with the number of its row, and is a layout. The script tries all small
swizzles.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from support.command_line import program

import layoutconv as lc
from layoutconv import ComposedLayout, Layout, Swizzle
from layoutconv.drawing import Figure, draw

ROWS, CHUNK, BITS = 8, 8, 16  # rows that are read at once, elements of 16 bytes, bits of one
Storage = Layout | ComposedLayout


@dataclass(frozen=True)
class Cost:
    """Slowdown of a warp's reads and writes by bank conflicts, and bytes of padding."""

    read: int
    write: int
    unused: int

    @property
    def free(self) -> bool:
        """True if no bank is asked twice and nothing is wasted."""
        return (self.read, self.write, self.unused) == (1, 1, 0)


def cost(columns: int, stride: int, swizzle: Swizzle | None = None) -> Cost:
    """Return the cost of a tile of ``columns`` elements a row, whose rows begin ``stride`` apart.

    A thread's 16 bytes are its mode 1. Of reading, 8 threads have the rows of a chunk each; of
    writing, as many as fit have the chunks of a row.
    """
    chunks = min(columns // CHUNK, 32)
    read = Layout(((ROWS, 32 // ROWS), CHUNK), ((stride, CHUNK), 1))
    write = Layout(((chunks, 32 // chunks), CHUNK), ((CHUNK, stride), 1))
    if columns // CHUNK < 32 // ROWS:  # the next chunks are those of the next rows
        read = Layout(
            ((ROWS, chunks, 32 // ROWS // chunks), CHUNK), ((stride, CHUNK, 8 * stride), 1)
        )

    def ways(access: Layout) -> int:
        stored = access if swizzle is None else ComposedLayout(swizzle, 0, access)
        return lc.bank_conflicts(stored, BITS, vector=CHUNK).ways

    return Cost(ways(read), ways(write), (stride - columns) * ROWS * BITS // 8)


def search(columns: int) -> Iterator[Swizzle]:
    """The swizzles that make both accesses free, those that permute fewest bits first."""
    for bits in range(4):
        for base in range(6):
            for shift in range(max(bits, 1), 7):
                swizzle = Swizzle(bits, base, shift)
                try:
                    if cost(columns, columns, swizzle).free:
                        yield swizzle
                except lc.LayoutError:  # 16 bytes would not stay together
                    continue


def picture(columns: int = 64) -> Figure:
    """Eight rows of chunks in their banks: as they are, padded, swizzled."""
    chunks = columns // CHUNK
    plain = Layout((ROWS, chunks), (chunks, 1))
    best = next(search(columns))
    in_chunks = Swizzle(best.bits, best.base - 3, best.shift)  # of chunks, not of elements
    shown: dict[str, Storage] = {
        "plain rows": plain,
        "padded by a chunk": Layout((ROWS, chunks), (chunks + 1, 1)),
        f"{best} of the elements": ComposedLayout(in_chunks, 0, plain),
    }
    grids = []
    for title, layout in shown.items():
        figure = draw(layout, element_bits=CHUNK * BITS)
        ((grid, *_), *_) = figure.grids
        assert grid is not None
        grids.append(replace(grid, title=title))
    title = "Chunks of 16 bytes in shared memory, coloured by their banks"
    return Figure(title, (tuple(grids[:2]), tuple(grids[2:])), figure.legend)


def main(arguments: Sequence[str] | None = None) -> int:
    """Count, search, compare; 0 if what is known to be free is, and what is not is not, else 1."""
    parser = program(__file__, __doc__, "--columns 32", picture=".svg")
    add = parser.add_argument
    sizes = (16, 32, 64, 128)
    add("--columns", type=int, choices=sizes, default=64, help="elements of a row")
    options = parser.parse_args(arguments)
    columns = options.columns
    found = list(search(columns))
    plain, padded = cost(columns, columns), cost(columns, columns + CHUNK)
    swizzled = cost(columns, columns, found[0])
    print(f"A tile of fp16, {columns} elements a row; 1 is free of conflicts\n")
    print("                 read  write  bytes unused in 8 rows")
    for name, one in (("plain", plain), ("padded", padded), (str(found[0]), swizzled)):
        print(f"{name:<16} {one.read:4d}  {one.write:5d}  {one.unused:6d}")
    print(f"\nfree of conflicts: {', '.join(map(str, found))}")
    banks = 32 * 4 * 8 // BITS  # elements that fill all banks once
    print(
        f"A row fills the banks {columns / banks:g} times: in plain rows "
        f"{plain.read} meet in one bank"
    )
    passed = swizzled.free and padded.read == 1 and plain.read == min(8, max(1, columns // 8))
    print(f"check {'ok' if passed else 'FAILED'}")
    picture(columns).save(options.output)
    print(f"picture {options.output}")
    return 0 if passed else 1


if __name__ == "__main__":
    raise SystemExit(main())
