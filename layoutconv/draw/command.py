"""The command ``draw``: text for the terminal, or a picture in the format of a file's suffix."""

from __future__ import annotations

import argparse
import re
import shutil
import sys
from pathlib import Path
from typing import Any

from ..algebra import copy_atom, copy_names, mma_atom, mma_names, parse, wgmma_atom
from ..errors import ArgumentError
from .api import draw
from .text import to_text

DESCRIPTION = "Draw a layout, a swizzle, an atom of tensor cores, or what a convolution reads."
EXAMPLES = """\
examples:
  layoutconv draw "((2,2),(4,2)):((1,8),(2,16))" -o layout.svg
  layoutconv draw "S<3,2,3> o 0 o (8,32):(32,1)" -o swizzle.html
  layoutconv draw "(128,8):(8,1)" --limit 16
  layoutconv draw --atom m16n8k16.f16 -o mma.svg
  layoutconv draw --atom SM80_16x8x16_F32F16F16F32_TN -o mma.tex
  layoutconv draw "((4,8),(2,2)):((32,1),(16,8))" --tv 16,8
  layoutconv draw --view fprop:5x5,3x3,stride=2,padding=1 --row 4 -o im2col.svg
"""

_LIMIT = 64
_VIEW_OPTIONS = ("stride", "padding", "dilation", "channels")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of the command."""
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("layout", nargs="?", help="in the notation of the literature, as above")
    what.add_argument(
        "--atom",
        metavar="NAME",
        help=f"{', '.join((*mma_names(), *copy_names()))}, m64n128k16 (wgmma), or CuTe's name",
    )
    what.add_argument(
        "--view", metavar="SPEC", help="fprop:INPUT,FILTER[,stride=,padding=,dilation=,channels=]"
    )
    add = parser.add_argument
    add("-o", "--output", type=Path, metavar="FILE", help=".svg, .html, .tex or .txt")
    add("--format", choices=("svg", "html", "tikz", "text"), help="of a file with another suffix")
    add("--tv", type=_extents, metavar="M,N", help="(thread, value) layout of an M x N tile")
    add("--row", type=int, metavar="M", help="mark the cells that this row of a view reads")
    add("--element-bits", type=int, metavar="BITS", help="colour by bank of shared memory")
    add("--limit", type=int, metavar="N", help=f"rows and columns that are shown ({_LIMIT})")
    add("--title", help="the notation, if not given")
    add("--ascii", action="store_true", help="no box-drawing characters on the terminal")
    add("--colour", "--color", action="store_true", help="colours on the terminal")


def run(options: argparse.Namespace) -> int:
    """Draw; the exit status."""

    def drawn(limit: int) -> Any:
        return draw(
            obj,
            options.output,
            format=options.format,
            tv=options.tv,
            row=options.row,
            element_bits=options.element_bits,
            limit=limit,
            title=options.title,
        )

    obj = _object(options)
    if options.output is not None:
        drawn(_LIMIT if options.limit is None else options.limit)
        return 0
    ascii = options.ascii or not _encodes("┌⋯", sys.stdout.encoding)
    for limit in _limits(options.limit):
        text = to_text(drawn(limit), ascii=ascii, colour=options.colour)
        plain = re.sub(r"\x1b\[[0-9;]*m", "", text)
        if max(map(len, plain.split("\n"))) <= shutil.get_terminal_size().columns:
            break
    print(text)
    return 0


def _limits(asked: int | None) -> list[int]:
    """The limits to try until the picture fits the terminal; without one, the first will do."""
    if asked is not None:
        return [asked]
    return [_LIMIT, 48, 32, 24, 20, 16, 12, 10, 8] if sys.stdout.isatty() else [_LIMIT]


def _encodes(text: str, encoding: str | None) -> bool:
    try:
        text.encode(encoding or "ascii")
    except UnicodeEncodeError:
        return False
    return True


def _object(options: argparse.Namespace) -> Any:
    if options.atom is not None:
        return atom(options.atom)
    return parse(options.layout) if options.view is None else view(options.view)


def atom(name: str) -> Any:
    """The atom of a name of PTX's (``m16n8k16.f16``, ``ldmatrix.x4``) or of CuTe's.

    >>> atom("SM80_16x8x8_F32TF32TF32F32_TN").name, atom("SM75_U16x8_LDSM_T").name
    ('m16n8k8.tf32', 'ldmatrix.x4.trans')
    >>> atom("SM90_64x128x16_F32F16F16_SS").shape
    (64, 128, 16)
    """
    if name in copy_names():
        return copy_atom(name)
    if wgmma := re.fullmatch(r"m64n(\d+)k(8|16|32)", name):
        return wgmma_atom(int(wgmma[1]), 256 // int(wgmma[2]))
    if ldmatrix := re.fullmatch(r"SM75_U(32|16)x([1248])_LDSM_([NT])", name):
        matrices = int(ldmatrix[2]) * int(ldmatrix[1]) // 32
        return copy_atom(f"ldmatrix.x{matrices}" + (".trans" if ldmatrix[3] == "T" else ""))
    inputs = r"(BF16|F16|TF32|F64|S8|U8|E4M3|E5M2)"
    if mma := re.fullmatch(rf"SM\d+_(\d+)x(\d+)x(\d+)_[FS]\d\d{inputs}\4\w*", name):
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
    if not text.isdecimal():
        raise ArgumentError("--view", f"a number where {text!r} is", repr(spec))
    return int(text)


def _extents(text: str) -> tuple[int, ...]:
    return tuple(int(extent) for extent in re.split("[,x]", text))
