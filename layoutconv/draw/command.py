"""The command ``draw``: text, a picture in the format of a file's suffix, or a page to type on."""

from __future__ import annotations

import re
import shutil
import sys
from contextlib import suppress
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

from ..algebra import copy_atom, copy_names, mma_atom, mma_names, wgmma_atom
from ..errors import ArgumentError
from .api import draw
from .expression import evaluate
from .figure import format_of
from .files import write
from .text import to_text

LIMIT, STEPS_LIMIT = 64, 32  # rows and columns that are shown; of several layouts, fewer
_VIEW_OPTIONS = ("stride", "padding", "dilation", "channels")


@dataclass(frozen=True)
class DrawOptions:
    """What ``layoutconv draw`` was asked for; the command line describes each.

    One of ``layout``, ``atom`` and ``view`` is given.
    """

    layout: str | None = None
    atom: str | None = None
    view: str | None = None
    output: Path | None = None
    format: str | None = None
    tv: tuple[int, int] | None = None
    row: int | None = None
    element_bits: int | None = None
    limit: int | None = None
    title: str | None = None
    ascii: bool = False
    colour: bool = False
    steps: bool = False


def run(options: DrawOptions) -> None:
    """Draw, into the file that was asked for or on standard output."""

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

    if options.steps:
        _run_steps(options)
        return
    obj = _object(options)
    if options.output is not None:
        drawn(LIMIT if options.limit is None else options.limit)
        return
    ascii = options.ascii or not _encodes("┌⋯", sys.stdout.encoding)
    for limit in _limits(options.limit):
        text = to_text(drawn(limit), ascii=ascii, colour=options.colour)
        plain = re.sub(r"\x1b\[[0-9;]*m", "", text)
        if max(map(len, plain.split("\n"))) <= shutil.get_terminal_size().columns:
            break
    print(text)


def _run_steps(options: DrawOptions) -> None:
    """Every operation of an expression: a page that goes through them, or all of them as text.

    Also those of one that has no result, before its error is raised.
    """
    from .html import page
    from .serve import shown
    from .step import steps_text
    from .steps import steps

    limit = STEPS_LIMIT if options.limit is None else options.limit
    expression = options.layout or ""
    format = options.format or ("text" if options.output is None else format_of(options.output))
    if format not in ("html", "text"):
        raise ArgumentError("--output", "a .html or .txt file beside --steps", options.output)
    if format == "html":
        head = f"<h1><code>{escape(expression)}</code></h1>\n"
        content = page(expression, shown(expression, limit)[1], head)
    else:
        content = steps_text(steps(expression, limit=limit)) + "\n"
    if options.output is None:
        print(content, end="")
    else:
        write(options.output, content)
    evaluate(expression)


def serve(expression: str | None, port: int, limit: int | None) -> None:
    """Serve the page on which expressions are typed, until Ctrl-C."""
    from .serve import Server

    if limit is not None and limit < 4:
        raise ArgumentError("--limit", "an int >= 4", limit)
    with Server(port, limit=STEPS_LIMIT if limit is None else limit) as server:
        print(f"{server.address_of(expression)}  (Ctrl-C ends it)", flush=True)
        with suppress(KeyboardInterrupt):
            server.serve_forever()


def _limits(asked: int | None) -> list[int]:
    """The limits to try until the picture fits the terminal; without one, the first will do."""
    if asked is not None:
        return [asked]
    return [LIMIT, 48, 32, 24, 20, 16, 12, 10, 8] if sys.stdout.isatty() else [LIMIT]


def _encodes(text: str, encoding: str | None) -> bool:
    try:
        text.encode(encoding or "ascii")
    except UnicodeEncodeError:
        return False
    return True


def _object(options: DrawOptions) -> Any:
    if options.atom is not None:
        return atom(options.atom)
    if options.view is not None:
        return view(options.view)
    assert options.layout is not None
    return evaluate(options.layout)


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
