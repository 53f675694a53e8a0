"""Damaged point files: each is read as strict parsers read it, or raises ``PointFileError``.

``python -m tests.fuzz.points --count 10000`` runs so many, ``--case 123`` one of them again.
"""

from __future__ import annotations

import os
import random
import resource
import tempfile
import time

import numpy as np

from layoutconv.errors import PointFileError
from layoutconv.sparse.coords.points import read_points

from . import pool, whole_files, whole_las
from .damage import damaged
from .laszip_child import EndedError
from .report import parser_of_range
from .strict import RefusedError, parse_bin, parse_npy
from .strict_las import parse_las
from .strict_pcd import parse_pcd
from .strict_ply import parse_ply

PARSERS = {
    ".bin": parse_bin,
    ".npy": parse_npy,
    ".ply": parse_ply,
    ".pcd": parse_pcd,
    ".las": parse_las,
    ".laz": parse_las,
}
# Files by turns: compressed ones take a hundred times as long as others.
MAKERS = [
    *[whole_files.ply_file] * 8, *[whole_files.pcd_file] * 8, *[whole_las.las_file] * 6,
    *[whole_files.npy_file] * 3, whole_files.bin_file, whole_las.laspy_file, whole_las.laz_file,
]  # fmt: skip
OF_ONE = 40  # cases of a file: the first is the file itself
SECONDS = 2.0
MEMORY = 6 << 30  # of addresses; what is used of it is looked at, too
RESIDENT = 200_000  # KiB


class Case:
    """One case after the other, in one process; ``seconds`` are those that ``read`` may take."""

    def __init__(self, seed=0, read=read_points, seconds=SECONDS):
        self.read, self.seconds = read, seconds
        os.environ["RAYON_NUM_THREADS"] = "1"
        shared = "/dev/shm"
        self.folder = tempfile.mkdtemp(dir=shared if os.path.isdir(shared) else None)
        self.seed = seed
        self.start = _resident()

    def __call__(self, number):
        rng = random.Random(f"{self.seed}/{number}")
        whole = whole_file(self.seed, number // OF_ONE)
        data = whole.data
        if number % OF_ONE:
            other = whole_file(self.seed, number // OF_ONE + rng.randint(1, 3)).data
            data = damaged(rng, data, whole.suffix, other)
        path = os.path.join(self.folder, "cloud" + whole.suffix)
        with open(path, "wb") as file:
            file.write(data)
        outcome = self.compare(rng, path, data, whole, data == whole.data)
        if _resident() > self.start + RESIDENT:
            used, self.start = _resident() - self.start, _resident()
            return "memory", f"{used} KiB more than at the start"
        return outcome

    def compare(self, rng, path, data, whole, is_whole):
        columns = whole.columns
        if whole.suffix == ".bin" and rng.random() < 0.3:
            columns, is_whole = None, False
        begun = time.monotonic()
        try:
            rows = self.read(path, columns, "float64")
        except PointFileError as error:
            if not str(error).startswith(path):
                return "wrong", f"a message without the path: {error}"
            rows = error
        took = time.monotonic() - begun
        if took > self.seconds:
            return "slow", f"{took:.1f} s for {len(data)} bytes of {whole.suffix}"
        try:
            parse = PARSERS[whole.suffix]
            expected = parse(data, columns) if whole.suffix == ".bin" else parse(data)
        except EndedError:
            return ".laz not compared: it ends LASzip", None
        except RefusedError as error:
            if is_whole:
                return "wrong", f"the strict parser refuses a whole {whole.suffix}: {error}"
            if not isinstance(rows, Exception):
                return "wrong", f"{whole.suffix} was read, but {error}"
            return f"{whole.suffix} refused", None
        if isinstance(rows, Exception):
            if is_whole:
                return "wrong", f"a whole file is refused: {rows}"
            return f"{whole.suffix} refused, that can be read", (
                str(rows) if os.environ.get("SHOW") else None
            )
        if not np.array_equal(rows, np.array(expected)):
            return "wrong", f"{whole.suffix}: other numbers"
        return f"{whole.suffix} read, {'whole' if is_whole else 'damaged'}", self.narrow(
            rng, path, columns, rows
        )

    def narrow(self, rng, path, columns, rows):
        """Return what is wrong with fewer columns, in float32, or None."""
        if columns is None and rng.random() < 0.1:
            fewer = rng.randint(3, rows.shape[1])
            try:
                found = self.read(path, fewer)
            except PointFileError as error:  # beyond float32
                return None if "float32" in str(error) else f"with {fewer} columns: {error}"
            if not np.array_equal(found, rows[:, :fewer].astype(np.float32)):
                return f"with {fewer} columns: other numbers"
        return None


_WHOLE = {}


def whole_file(seed, number):
    """The file that cases ``OF_ONE * number`` and on are made of."""
    if (seed, number) not in _WHOLE:
        if len(_WHOLE) > 200:
            _WHOLE.clear()
        rng = random.Random(f"{seed}/whole/{number}")
        _WHOLE[seed, number] = MAKERS[number % len(MAKERS)](rng)
    return _WHOLE[seed, number]


def _resident():
    """KiB of memory at most so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def main():
    parser = parser_of_range(__doc__, 10_000)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--case", type=int, help="run this one, in this process")
    options = parser.parse_args()
    if options.case is not None:
        print(Case(options.seed)(options.case))
        return
    begun = time.monotonic()
    found = pool.run(
        lambda: Case(options.seed), options.count, options.processes, SECONDS, MEMORY,
        options.first, options.seconds,
    )  # fmt: skip
    print(found)
    total = sum(found.counts.values())
    print(f"{total:,} cases in {time.monotonic() - begun:.0f} s, {len(found.wrong)} findings")
    raise SystemExit(bool(found.wrong))


if __name__ == "__main__":
    main()
