"""Atoms by their names, and views by their specifications, as they are typed."""

from __future__ import annotations

import re
from typing import Any

from ..algebra import copy_atom, copy_names, mma_atom, mma_names, wgmma_atom
from ..errors import ArgumentError

_VIEW_OPTIONS = ("stride", "padding", "dilation", "channels")


def atom(name: str) -> Any:
    """The atom of a name of PTX's (``m16n8k16.f16``, ``ldmatrix.x4``) or of CuTe's.

    >>> atom("SM80_16x8x8_F32TF32TF32F32_TN").name, atom("SM75_U16x8_LDSM_T").name
    ('m16n8k8.tf32', 'ldmatrix.x4.trans')
    >>> atom("SM90_64x128x16_F32F16F16_SS").shape
    (64, 128, 16)
    """
    if name in copy_names():
        return copy_atom(name)
    if wgmma := re.fullmatch(r"m64n([0-9]{1,3})k(8|16|32)", name):
        return wgmma_atom(int(wgmma[1]), 256 // int(wgmma[2]))
    if ldmatrix := re.fullmatch(r"SM75_U(32|16)x([1248])_LDSM_([NT])", name):
        matrices = int(ldmatrix[2]) * int(ldmatrix[1]) // 32
        return copy_atom(f"ldmatrix.x{matrices}" + (".trans" if ldmatrix[3] == "T" else ""))
    extent, inputs = "([0-9]{1,3})", r"(BF16|F16|TF32|F64|S8|U8|E4M3|E5M2)"
    if mma := re.fullmatch(
        rf"SM[0-9]+_{extent}x{extent}x{extent}_[FS][0-9][0-9]{inputs}\4\w*", name
    ):
        m, n, k = (int(extent) for extent in mma.group(1, 2, 3))
        if m == 64:
            return wgmma_atom(n, 256 // k, a_in_registers="_RS" in name)
        return mma_atom(f"m{m}n{n}k{k}.{mma[4].lower()}")
    if name not in mma_names():
        examples = "m16n8k16.f16, ldmatrix.x4, m64n128k16, SM80_16x8x16_F32F16F16F32_TN"
        raise ArgumentError("atom", f"a name such as {examples}", repr(name))
    return mma_atom(name)


def view(spec: str) -> Any:
    """The forward view of ``fprop:INPUT,FILTER,...``, such as ``fprop:5x5,3x3,padding=1``.

    >>> view("fprop:5x5,3x3,stride=2,padding=1").m
    9
    """
    from ..conv import ConvProblem, fprop_view

    kind, _, rest = spec.partition(":")
    first, *more = rest.split(",")
    options = dict(part.partition("=")[::2] for part in more[1:])
    if kind != "fprop" or not more or not set(options) <= set(_VIEW_OPTIONS):
        wanted = "fprop:INPUT,FILTER" + "".join(f"[,{name}=N]" for name in _VIEW_OPTIONS)
        raise ArgumentError("--view", wanted, repr(spec))
    numbers = {name: _number(spec, value) for name, value in options.items()}
    channels = numbers.pop("channels", 1)
    cells, taps = ([_number(spec, e) for e in part.split("x")] for part in (first, more[0]))
    return fprop_view(ConvProblem((1, *cells, channels), (1, *taps), **numbers))


def _number(spec: str, text: str) -> int:
    if not re.fullmatch("[0-9]{1,9}", text):
        raise ArgumentError("--view", f"a number where {text!r} is", repr(spec))
    return int(text)
