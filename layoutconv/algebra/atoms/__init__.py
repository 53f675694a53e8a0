"""Matrix and copy instructions as data: which thread holds which element.

There is one file per family of instructions: ``mma`` (mma.sync, dense and sparse), ``wgmma``,
``tcgen05`` (with the accumulators in tensor memory), ``mfma`` (AMD), ``smem`` (the layouts that
matrix descriptors describe), ``warp_copies`` (ldmatrix, stmatrix, cp.async, TMA) and
``tmem_copies`` (tcgen05.ld, .st and .cp). They are rules rather than lists, written from the PTX
ISA and AMD's instruction set manuals, and carry CuTe's names where CuTe has one.
"""

from .atom import CopyAtom, MmaAtom
from .copies import copy_atom, copy_names
from .mfma import mfma_atom, mfma_names
from .mma import mma_atom, mma_names
from .smem import smem_atom
from .tcgen05 import tcgen05_atom, tmem_accumulator
from .warp_copies import tma_atom
from .wgmma import wgmma_atom

__all__ = [
    "CopyAtom",
    "MmaAtom",
    "copy_atom",
    "copy_names",
    "mfma_atom",
    "mfma_names",
    "mma_atom",
    "mma_names",
    "smem_atom",
    "tcgen05_atom",
    "tma_atom",
    "tmem_accumulator",
    "wgmma_atom",
]
