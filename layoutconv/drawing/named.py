"""Atoms by name, and views by specification, as users type them."""

from __future__ import annotations

import re
from typing import Any

from ..algebra import atoms
from ..errors import ArgumentError

_LISTED = (
    (atoms.mma_names, atoms.mma_atom), (atoms.copy_names, atoms.copy_atom),
    (atoms.mfma_names, atoms.mfma_atom),
)  # fmt: skip
_VIEW_OPTIONS = ("stride", "padding", "dilation", "channels")


def atom(name: str) -> Any:
    """Return the atom of a PTX name (``m16n8k16.f16``, ``ldmatrix.x4``), AMD's or CuTe's.

    >>> atom("SM80_16x8x8_F32TF32TF32F32_TN").name, atom("SM75_U16x8_LDSM_T").name
    ('m16n8k8.tf32', 'ldmatrix.x4.trans')
    >>> atom("SM90_64x128x16_F32F16F16_SS").shape, atom("tcgen05.m256n128k16.2cta").threads
    ((64, 128, 16), 2)
    """
    if found := _ours(name) or _of_cute(name):
        return found
    examples = "m16n8k16.f16, ldmatrix.x4, m64n128k16, SM80_16x8x16_F32F16F16F32_TN"
    raise ArgumentError("atom", f"a name such as {examples}", repr(name))


def _ours(name: str) -> Any:
    for names, make in _LISTED:
        if name in names():
            return make(name)
    if wgmma := re.fullmatch(r"(sp\.)?m64n([0-9]{1,3})k(8|16|32|64|256)", name):
        sparse, n, k = wgmma[1] is not None, int(wgmma[2]), int(wgmma[3])
        return atoms.wgmma_atom(n, 256 // k * (2 if sparse else 1), sparse=sparse)
    if umma := re.fullmatch(r"tcgen05\.m([0-9]{2,3})n([0-9]{1,3})k(8|16|32|64)(\.2cta)?", name):
        m, n, k = (int(extent) for extent in umma.group(1, 2, 3))
        return atoms.tcgen05_atom(m, n, 256 // k, cta_group=2 if umma[4] else 1)
    return None


_TYPES = "BF16|F16|TF32|F64|S8|U8|S4|U4|U1|E4M3|E5M2|E3M2|E2M3|E2M1"
_CUTE_MMA = re.compile(
    r"(?:SM[0-9]+|MMA)_([0-9]{1,3})x([0-9]{1,3})x([0-9]{1,3})"
    + rf"_[FS](?P<c>16|32|64)(?P<a>{_TYPES})(?P<b>{_TYPES})(?:[FS](?:16|32|64))?_(?P<major>\w+)"
)
_CUTE_MATRICES = re.compile(r"SM(?:75|90)_U(32|16)x([1248])_(LD|ST)SM_([NT])")
_CUTE_TMEM = re.compile(r"SM100_TMEM_(LOAD|STORE)_(?:16|32)dp(32b|64b|128b|256b)([0-9]+)x")


def _of_cute(name: str) -> Any:
    if found := _CUTE_MATRICES.fullmatch(name):
        matrices = int(found[2]) * int(found[1]) // 32
        across = ".trans" if found[4] == "T" else ""
        return atoms.copy_atom(f"{found[3].lower()}matrix.x{matrices}{across}")
    if found := _CUTE_TMEM.fullmatch(name):
        way = "ld" if found[1] == "LOAD" else "st"
        shape = "32x32b" if found[2] == "32b" else f"16x{found[2]}"
        return _ours(f"tcgen05.{way}.{shape}.x{found[3]}")
    if name in ("SM61_DP4A", "SM61_DP2A"):
        return _ours({"SM61_DP4A": "m1n1k4.dp4a", "SM61_DP2A": "m1n1k2.dp2a"}[name])
    if not (mma := _CUTE_MMA.fullmatch(name)):
        return None
    m, n, k = (int(extent) for extent in mma.group(1, 2, 3))
    if m == 64:
        return atoms.wgmma_atom(n, 256 // k, a_in_registers="RS" in mma["major"])
    a, b = mma["a"].lower().replace("u1", "b1"), mma["b"].lower().replace("u1", "b1")
    if (m, n, k, a) == (8, 8, 4, "f16"):
        major = {"TN": ""}.get(mma["major"], f".{mma['major'].lower()}")
        return _ours(f"m8n8k4.f16{major}" + (".acc16" if mma["c"] == "16" else ""))
    return _ours(f"m{m}n{n}k{k}.{a}" + (f".{b}" if a != b else ""))


def view(spec: str) -> Any:
    """Return the forward view of ``fprop:INPUT,FILTER,...``, such as ``fprop:5x5,3x3,padding=1``.

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
        raise ArgumentError("--view", f"a number in place of {text!r}", repr(spec))
    return int(text)
