"""Loads of A and B: TMA im2col, TMA tiled or cp.async, chosen once per kernel."""

from __future__ import annotations

from typing import Any

from layoutconv.planning.kernel_spec import KernelSpec
from layoutconv.planning.tma_im2col import im2col_of_a, im2col_of_b
from layoutconv.planning.tma_tiled import memory_of_b
from layoutconv.view.gemm_view import GemmView

from ..common.runtime_integers import RuntimeIntegers
from .cp_async import CpAsyncLoad
from .mainloop_sm80 import MainloopSm80
from .mainloop_sm90 import MainloopSm90
from .mma_atoms import Data
from .operand import Operand
from .tma import TmaLoad, tiled_tma_atom
from .tma_im2col_copy import im2col_tma_atom

Load = CpAsyncLoad | TmaLoad


class LoadKinds:
    """The load instructions of a kernel's operands.

    TMA im2col loads A, TMA tiled or im2col loads B. cp.async loads an operand that no TMA
    descriptor can describe.

    Attributes:
        tma: whether TMA loads A, and whether it loads B.
    """

    def __init__(self, view: GemmView, spec: KernelSpec, data: Data) -> None:
        self.spec, self.data = spec, data
        self.tiled_b = memory_of_b(view, spec)
        self.im2col = im2col_of_a(view, spec), im2col_of_b(view, spec)
        self.tma = self.im2col[0] is not None, bool(self.tiled_b or self.im2col[1])

    def atom_of_a(self, pointer: Any, args: RuntimeIntegers) -> Any:
        """Make A's copy atom and TMA descriptor on the host; None if TMA does not load A."""
        found, _ = self.im2col
        return found and im2col_tma_atom(found, args, pointer, self.spec, self.data, 0)

    def atom_of_b(self, pointer: Any, args: RuntimeIntegers) -> tuple[Any, Any]:
        """Make B's copy atom and TMA descriptor on the host, and, for TMA tiled, its coordinate
        tensor; None for each that B does not have.
        """
        if self.tiled_b is not None:
            return tiled_tma_atom(self.tiled_b, pointer, self.spec, self.data)
        _, found = self.im2col
        return found and im2col_tma_atom(found, args, pointer, self.spec, self.data, 1), None


class Loads:
    """A thread's share of loading A and B, for any output tile.

    ``atoms`` come from the host: A's copy atom, B's copy atom, B's coordinate tensor.
    """

    def __init__(
        self,
        kinds: LoadKinds,
        mainloop: MainloopSm80 | MainloopSm90,
        operands: tuple[Operand, Operand],
        atoms: tuple[Any, Any, Any],
        group: Any,
        tid: Any,
    ) -> None:
        self.kinds, self.mainloop, self.operands = kinds, mainloop, operands
        self.atoms, self.group, self.tid = atoms, group, tid

    def __call__(self, m0: Any, n0: Any) -> tuple[Load, Load]:
        """Return the loads of the output tile at row ``m0``, column ``n0`` of D."""
        return self._of_a(m0), self._of_b(n0)

    def _of_a(self, first: Any) -> Load:
        mainloop, (operand, _), (found, _) = self.mainloop, self.operands, self.kinds.im2col
        if found is None or isinstance(mainloop, MainloopSm80):
            return mainloop.cp_async_load(operand, mainloop.s_a, first, self.tid)
        of = found, operand.args, mainloop.s_a
        return mainloop.tma_im2col_load(self.atoms[0], *of, first, self.group, self.tid)

    def _of_b(self, first: Any) -> Load:
        mainloop, (_, operand), (_, found) = self.mainloop, self.operands, self.kinds.im2col
        _, atom, coordinates = self.atoms
        if isinstance(mainloop, MainloopSm90):
            if self.kinds.tiled_b is not None:
                made = atom, coordinates
                of = made, self.kinds.tiled_b, first, self.group, self.tid
                return mainloop.tma_tiled_load(*of)
            if found is not None:
                of_b = found, operand.args, mainloop.s_b
                return mainloop.tma_im2col_load(atom, *of_b, first, self.group, self.tid)
        return mainloop.cp_async_load(operand, mainloop.s_b, first, self.tid)
