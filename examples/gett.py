"""Tensor contractions from text, any strides: CUTLASS's example 51 (GETT) as GEMM views.

    python examples/gett.py [--device cuda] [--text "abkl,ckbl->lac"] [--output gett.svg]

In a contraction such as D[l, a, c] = sum over b, k of A[a, b, k, l] * B[c, k, b, l], each letter
belongs to a mode of the matrix product: to m if A and D have it, to n if B and D have it, to k if
A and B have it, to l if all three have it. A mode of the product may have many letters with any
strides. So no tensor is transposed, copied or reshaped, whatever the order of its letters.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence
from dataclasses import replace

import torch
from support.command_line import parsed, program
from torch import Tensor

import layoutconv as lc
from layoutconv import ComposedLayout, E, GemmView, Layout
from layoutconv.drawing import Figure, draw
from layoutconv.drawing.one_scale import on_one_scale
from layoutconv.errors import ArgumentError
from layoutconv.view.operands import row_major, runtime, static

EXTENTS = {"a": 24, "b": 3, "c": 32, "d": 10, "e": 16, "k": 20, "l": 4}
TEXTS = [
    "ak,ck->ac",  # a matrix product
    "abkl,ckbl->lac",  # sums over two modes, and a batch
    "adkb,bkce->adce",  # two modes of each: m, n and k
    "kda,kec->adec",  # both operands run along their rows, not along the sum
    "ecbk,dkb->dec",  # the last letter of D is one of A's: the operands change places
    "abk,kb->a",  # no mode of n
    "al,cl->lac",  # no sum: the outer products of a batch
]
BOUND = {"cpu": 1e-6, "cuda": 1e-3}  # on relative errors; a GPU multiplies fp32 as tf32


def main(arguments: Sequence[str] | None = None) -> int:
    """Contract, and compare with torch.einsum in float64; 1 if a result is wrong, else 0."""
    parser = program(__file__, __doc__, '--text "adkb,bkce->adce"', device="cpu", picture=".svg")
    add = parser.add_argument
    letters = "".join(EXTENTS)
    add("--text", type=contraction, help=f"one contraction, over the letters {letters}")
    options = parsed(parser, arguments)
    generator = torch.Generator().manual_seed(0)
    passed = True
    for text in [options.text] if options.text else TEXTS:
        inputs = text.partition("->")[0].split(",")
        for sliced in (False, True):
            # Sliced: every other element along the first mode of a larger tensor.
            a, b = (random(letters, sliced, generator).to(options.device) for letters in inputs)
            if sliced:
                a, b = a[::2], b[::2]
            expected = torch.einsum(text, a.double(), b.double())
            as_product, a, b = arranged(text, a, b)
            view = gett_view(as_product, a, b)
            if not sliced:
                print(f"\n{as_product}\n{view.describe()}")
            passed &= compare("sliced" if sliced else "dense", lc.execute(view, a, b), expected)
    picture().save(options.output)
    print(f"\npicture {options.output}")
    return 0 if passed else 1


def contraction(text: str) -> str:
    """Read a contraction of two tensors, whose letters are modes with an extent here."""
    some = f"([{''.join(EXTENTS)}]+)"
    found = re.fullmatch(f"{some},{some}->{some}", text)
    if found is None or any(len({*mode}) < len(mode) for mode in found.groups()):
        expected = f"two tensors and their product, as {TEXTS[0]!r}, no letter twice in one"
        raise argparse.ArgumentTypeError(f"expected {expected}, got {text!r}")
    return text


def picture() -> Figure:
    """The three matrices of a contraction: where in memory, undisturbed, their entries are."""
    text, sizes = "adkb,bkce->adce", {"a": 2, "d": 3, "k": 3, "b": 2, "c": 2, "e": 2}
    a, b = (
        torch.empty([sizes[x] for x in letters]) for letters in text.partition("->")[0].split(",")
    )
    view = gett_view(text, a, b)
    grids = []
    for name, layout in {"A (m, k)": view.a, "B (n, k)": view.b, "D (m, n)": view.d}.items():
        ((grid, *_), *_) = draw(layout).grids
        assert grid is not None
        grids.append(replace(grid, title=name))
    figure = Figure(f"{text}: offsets in memory", (tuple(grids[:2]), tuple(grids[2:])))
    return on_one_scale(figure, "offset in its own tensor")


def random(letters: str, larger: bool, generator: torch.Generator) -> Tensor:
    first, *rest = (EXTENTS[x] for x in letters)
    return torch.randn(first * (1 + larger), *rest, generator=generator)


def arranged(text: str, a: Tensor, b: Tensor) -> tuple[str, Tensor, Tensor]:
    """The operands in the order in which the last letter of the result is one of n, or as given.

    Results are written in vectors along n, and the last letter runs along memory.
    """
    left, right, output = _parsed(text)
    if output[-1] in left and output[-1] not in right:
        return f"{right},{left}->{output}", b, a
    return text, a, b


def gett_view(text: str, a: Tensor, b: Tensor) -> GemmView:
    """A contraction of two tensors of any shapes and strides as a GEMM view.

    ``text`` is as torch.einsum has it, ``"abkl,ckbl->lac"``; the result is contiguous. Raises
    ``ArgumentError`` for a text that is no contraction, and for tensors that do not fit it.
    """
    left, right, output = _parsed(text)
    extents: dict[str, int] = {}
    for name, letters, tensor in (("a", left, a), ("b", right, b)):
        if tensor.dim() != len(letters):
            raise ArgumentError(name, f"{len(letters)} modes, {letters}", tuple(tensor.shape))
        for x, extent in zip(letters, tensor.shape, strict=True):
            if extents.setdefault(x, extent) != extent:
                raise ArgumentError(name, f"{extents[x]} for mode {x}", tuple(tensor.shape))
    # Columns, which a kernel is unrolled over, are constants of it; the rest are arguments.
    size = {
        x: (runtime if x in left and x in output else static)(extent, x)
        for x, extent in extents.items()
    }
    shapes = [tuple(size[x] for x in letters) for letters in (left, right, output)]
    A, B = Layout(shapes[0], a.stride()), Layout(shapes[1], b.stride())
    D = row_major(shapes[2])
    strides = [
        dict(zip(letters, map(int, layout.stride), strict=True))
        for letters, layout in ((left, A), (right, B), (output, D))
    ]

    # In a mode of the product, the letter with the least stride runs fastest: vectors are along it.
    m = sorted((x for x in left if x not in right), key=lambda x: strides[0][x])
    n = sorted((x for x in right if x not in left), key=lambda x: strides[2][x])
    k = sorted(
        (x for x in left if x not in output), key=lambda x: min(strides[0][x], strides[1][x])
    )
    l = sorted((x for x in left if x in right and x in output), key=lambda x: strides[2][x])

    def operand(memory: Layout, letters: str, *modes: list[str]) -> ComposedLayout:
        """The modes of the product to the coordinate of a tensor: mode x is mode x of the tensor.

        A mode without letters is one element, a step of which leads nowhere.
        """
        extents = [tuple(size[x] for x in mode) or (1,) for mode in modes]
        steps = [tuple(E(letters.index(x)) for x in mode) or (0 * E(0),) for mode in modes]
        flat = [tuple(t if len(t) > 1 else t[0] for t in tree) for tree in (extents, steps)]
        return ComposedLayout(memory, 0, Layout(*flat))

    batch = [l] if l else []
    return GemmView(
        a=operand(A, left, m, k, *batch),
        b=operand(B, right, n, k, *batch),
        d=operand(D, output, m, n, *batch),
    )


def _parsed(text: str) -> tuple[str, str, str]:
    """The letters of both operands and of the result."""
    inputs, arrow, output = text.partition("->")
    left, comma, right = inputs.partition(",")
    tensors = left, right, output
    if not arrow or not comma or not all(letters.isalpha() for letters in tensors):
        raise ArgumentError("text", 'two operands and a result, as in "ak,ck->ac"', text)
    for letters in tensors:
        if len(set(letters)) < len(letters):
            raise ArgumentError("text", "every letter once in a tensor", letters)
    everywhere = left + right + output
    for x in everywhere:
        if everywhere.count(x) < 2:
            raise ArgumentError("text", "every letter in two tensors or three", x)
    return left, right, output


def compare(name: str, d: Tensor, expected: Tensor) -> bool:
    """Print how far a result is from float64's, and whether that is within the bound."""
    error = float((d.double() - expected).norm() / expected.norm())
    passed = error <= BOUND[d.device.type]  # false of a result that is not a number
    verdict = "ok" if passed else "FAILED"
    print(f"{name}: {tuple(d.shape)}, error {error:.1e} of float64's result, {verdict}")
    return passed


if __name__ == "__main__":
    raise SystemExit(main())
