"""Schedule of norms and column sums: CTAs by parts of the rows and blocks of columns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

from ..base.caches import remembered

LOG_THREADS = 8  # per CTA
LOG_COLUMNS = 6  # per block, at most
FLIGHT = 4  # rows that a thread loads before it waits for one
PARTS, CTAS = 128, 256  # parts of the rows, and CTAs of a launch, at most
BYTES = 16  # per vector


@dataclass(frozen=True)
class NormShape:
    """The compile-time key of kernels.

    Args:
        dtype: of features and results, "float16", "bfloat16" or "float32"; sums are in float32.
        vector: columns per thread; divides the number of columns (``columns_per_load``).
        parameters: the dtype of weight and bias; "" without. For column sums, the result's dtype.
        running: the dtype of running statistics; "" without.
        masked: whether a mask says which rows count.
        activation: the name of the activation; "" for none.
        added: whether a tensor is added to the result, before the activation.
        counts: whether the kernel counts batches.
        early: whether kernels start while the previous ones end (PDL).
        ranks: whether moments come merged, from an exchange between ranks or from a kernel of its
            own.
        images: whether each image has its own statistics, and its own parts of rows.
        stored: the dtype of results and their gradients, if not that of features.
        remakes: whether backward passes recompute the activation's input instead of reading
            results.
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
        """Return the key of kernels that depend on these fields only: the others are at defaults.

        >>> shape = NormShape("float16", 8, activation="relu", early=True)
        >>> shape.only("vector", "early") == NormShape("float32", 8, early=True)
        True
        """
        fields: dict[str, Any] = {name: getattr(self, name) for name in names}
        return NormShape(**{"dtype": "float32", "vector": 1, **fields})


def columns_per_load(columns: int, itemsize: int) -> int:
    """Return the columns per load of a thread: 16 bytes, or fewer to divide a row evenly.

    >>> [columns_per_load(*row) for row in ((64, 2), (20, 2), (64, 4), (5, 2))]
    [8, 4, 4, 1]
    """
    return min(BYTES // itemsize, columns & -columns)


class Schedule(NamedTuple):
    """The split of a launch into parts and blocks, as kernels take it.

    Attributes:
        rows, columns: of the features.
        log_across: log2 of the threads along a row of a block.
        share: rows per part.
        parts: the number of parts.
    """

    rows: int
    columns: int
    log_across: int
    share: int
    parts: int


@remembered(256)
def schedule(rows: int, columns: int, vector: int, most: int = PARTS) -> Schedule:
    """Split rows into at most ``most`` parts, each with at least ``FLIGHT`` rows for every thread.

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
