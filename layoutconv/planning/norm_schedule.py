"""Cut norms and sums of columns into CTAs: parts of the rows, and blocks of columns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

from ..base.caches import remembered

LOG_THREADS = 8  # of a CTA
LOG_COLUMNS = 6  # of a block, at most
FLIGHT = 4  # rows that a thread reads before it waits for one
PARTS, CTAS = 128, 256  # at most: of the rows, and of a launch
BYTES = 16  # of a vector


@dataclass(frozen=True)
class NormShape:
    """The structure that kernels are compiled for.

    Args:
        dtype: of features and results, "float16", "bfloat16" or "float32"; sums are in float32.
        vector: columns of a thread, which divide the columns that there are: ``vector_of``.
        parameters: the dtype of weight and bias; "" without. Of sums, the result's.
        running: the dtype of running statistics; "" without.
        masked: whether rows may have no cell.
        activation: the name of what follows; "" for nothing.
        added: whether a tensor is added to the result, in front of the activation.
        counts: whether batches are counted.
        early: whether kernels start while those before them end (PDL).
        ranks: whether moments are those that ranks tell each other, or that a kernel of its own has
            merged.
        images: whether each image has statistics of its own, and parts of its own rows.
        stored: the dtype of results and of their gradients, where it is not that of features.
        remakes: whether backward passes compute again what the activation was given, and do not
            read results.
    """

    dtype: str
    vector: int
    parameters: str = ""
    running: str = ""
    masked: bool = False
    activation: str = ""
    added: bool = False
    counts: bool = False
    early: bool = False
    ranks: bool = False
    images: bool = False
    stored: str = ""
    remakes: bool = False

    def only(self, *names: str) -> NormShape:
        """The shape that what reads these fields alone is compiled for: the rest is as of none.

        >>> shape = NormShape("float16", 8, activation="relu", early=True)
        >>> shape.only("vector", "early") == NormShape("float32", 8, early=True)
        True
        """
        fields: dict[str, Any] = {name: getattr(self, name) for name in names}
        return NormShape(**{"dtype": "float32", "vector": 1, **fields})


def vector_of(columns: int, itemsize: int) -> int:
    """Columns that a thread reads at once: 16 bytes, or what divides a row.

    >>> vector_of(64, 2), vector_of(20, 2), vector_of(64, 4), vector_of(5, 2)
    (8, 4, 4, 1)
    """
    return min(BYTES // itemsize, columns & -columns)


class Schedule(NamedTuple):
    """The parts and blocks that a launch is cut into, as kernels take them.

    Attributes:
        rows, columns: of the features.
        log_across: the logarithm of the threads that have a row of a block.
        share: rows of a part.
        parts: how many there are.
    """

    rows: int
    columns: int
    log_across: int
    share: int
    parts: int


@remembered(256)
def schedule(rows: int, columns: int, vector: int, most: int = PARTS) -> Schedule:
    """Cut rows into parts, ``most`` or fewer, each of at least a load of every thread.

    >>> tuple(schedule(48_743, 64, 8)), tuple(schedule(100, 5, 1))
    ((48743, 64, 3, 381, 128), (100, 5, 3, 100, 1))
    """
    vectors = columns // vector
    log_across = min((vectors - 1).bit_length(), LOG_COLUMNS - (vector.bit_length() - 1))
    blocks = -(-vectors >> log_across)
    at_once = FLIGHT << (LOG_THREADS - log_across)
    parts = max(1, min(most, max(CTAS, most) // blocks, rows // at_once))
    share = -(-rows // parts)
    return Schedule(rows, columns, log_across, share, -(-rows // share))
