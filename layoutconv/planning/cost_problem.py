"""The inputs of the cost model."""

from __future__ import annotations

from dataclasses import dataclass

from .group_model import GroupProblem
from .kernel_spec import VECTOR_BYTES


@dataclass(frozen=True)
class Problem:
    """The inputs of the cost model: sizes of the GEMM, its groups and its elements.

    Attributes:
        k: length of the sums; for a kernel map, with the taps that tiles skip.
        channels: length of the contiguous mode of k, 0 if k is not contiguous. If channels are
            padded (``channel_padding.py``), memory has ``stored_channels``. ``line_channels``: of
            B, where they are padded to whole lines. Else these are 0.
        splittable: split-K may cut a sum into slices.
        skips_taps: tiles skip the taps that none of their rows has (active taps).
        gathered: rows of A are read through an index buffer.
        moved: least number of bytes that are read or written.
        halo_taps: taps that may share the rows of a tile (halo reuse), 1 if none do; with halo
            reuse the view has ``halo_growth`` times the rows.
        wgmma: Hopper's instructions can multiply it.
        clusters: cluster split-K may share a sum: an output depends only on its own whole sum, not
            on other rows.
        tma: TMA can load both operands of Hopper's tiles; ``tma_halo``: of tiles with halo reuse.
        zero_tiles: B has structural zeros that tiles skip; ``zero_tiles_halo``: tiles with halo
            reuse do (``structural_zeros.py``).
        persistent: a persistent kernel can run it: one group, and sums over every tap.
        register_store: results can be stored from registers: whole vectors of 16-bit or 32-bit
            elements.
        statistics: column statistics are stored, too.
        k_tiles: number of k-tiles of half a line in a sum, with halo reuse.
        group: the view's groups, if a tile may hold several.
        access_bytes: bytes of a vector of A, of B and of D; an element of D has ``stored_bytes``.
        b_along_k: B is contiguous along k.
        rows_adjoin: tiles with all columns are stored in whole vectors, as their rows adjoin.
        pointwise: A is a matrix: one tap, whole vectors. Its rates and times on Hopper have
            separate fits.
    """

    m: int
    n: int
    k: int
    channels: int
    dtype: str
    staged_bytes: int
    groups: int = 1
    splittable: bool = False
    skips_taps: bool = False
    gathered: bool = False
    moved: int = 0
    halo_taps: int = 1
    halo_growth: float = 1.0
    wgmma: bool = True
    clusters: bool = False
    tma: bool = False
    tma_halo: bool = False
    zero_tiles: bool = False
    zero_tiles_halo: bool = False
    persistent: bool = False
    register_store: bool = False
    statistics: bool = False
    k_tiles: int = 0
    group: GroupProblem | None = None
    access_bytes: tuple[int, int, int] = (VECTOR_BYTES, VECTOR_BYTES, VECTOR_BYTES)
    stored_bytes: int = 2
    b_along_k: bool = True
    rows_adjoin: bool = False
    pointwise: bool = False
    stored_channels: int = 0
    line_channels: int = 0
