"""A custom epilogue: a quantised layer from int8 to int8 in one kernel.

    python examples/own_epilogue.py [--device cuda] [--output own_epilogue.svg]

    y = saturate(round(relu6(sum * scale[k] + bias[k] + residual) * 20))

Sums of int8 products are int32. The epilogue multiplies them by a scale per filter, adds a bias
and the residual of a shortcut, clamps them, and converts them to int8 by one more scale. It
consists of five steps of the library, in an order that no module has, which run while the sums are
in registers. As separate operations, each step would read and write a tensor; the script compares
the bytes moved.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from support.command_line import parsed, program
from torch import Tensor

import layoutconv as lc
from layoutconv import Bias, Clamp, Epilogue, Layout, Residual, Scale
from layoutconv.conv import ConvProblem, fprop_view
from layoutconv.drawing import Cell, Figure, Grid, draw
from layoutconv.drawing.one_scale import recoloured
from layoutconv.drawing.palette import ramp

STEP = 1 / 20  # what 1 of the int8 result stands for
SIXES = 6.0


@dataclass(frozen=True, eq=False)
class Layer:
    """The tensors of a quantised 3x3 layer: x (N, H, W, C) and w (K, R, S, C) are int8."""

    problem: ConvProblem
    x: Tensor
    w: Tensor
    scale: Tensor
    bias: Tensor
    residual: Tensor

    @classmethod
    def of(cls, N: int, H: int, W: int, C: int, K: int, device: str = "cpu") -> Layer:
        generator = torch.Generator().manual_seed(0)
        problem = ConvProblem((N, H, W, C), (K, 3, 3), padding=1)

        def integers(*shape: int) -> Tensor:
            return torch.randint(-128, 128, shape, dtype=torch.int8, generator=generator)

        def numbers(*shape: int) -> Tensor:
            return torch.randn(shape, generator=generator)

        tensors = (
            integers(N, H, W, C),
            integers(K, 3, 3, C),
            (1 + torch.rand(K, generator=generator)) / (128 * 16 * (9 * C) ** 0.5),
            numbers(K) + 1,
            numbers(*problem.output).half(),
        )
        return cls(problem, *(tensor.to(device) for tensor in tensors))

    def epilogue(self) -> Epilogue:
        """The formula, from left to right; rounding and saturation belong to the int8 result."""
        return Epilogue(
            (
                Scale(self.scale),
                Bias(self.bias),
                Residual(self.residual),
                Clamp(0, SIXES),
                Scale(1 / STEP),
            )
        )

    def run(self) -> Tensor:
        """All of it in one call."""
        return lc.execute(
            fprop_view(self.problem), self.x, self.w, epilogue=self.epilogue(), out_dtype=torch.int8
        )

    def stages(self) -> dict[str, Tensor]:
        """The same by torch, in float64, with what there is after each step."""
        x, w = (t.double().movedim(-1, 1) for t in (self.x.cpu(), self.w.cpu()))
        sums = torch.nn.functional.conv2d(x, w, padding=1).movedim(1, -1)
        scaled = sums * self.scale.cpu().double()
        biased = scaled + self.bias.cpu().double()
        joined = biased + self.residual.cpu().double()
        clamped = joined.clamp(0, SIXES)
        stored = (clamped / STEP).round().clamp(-128, 127)
        return {
            "sums": sums,
            "scaled": scaled,
            "+ bias": biased,
            "+ residual": joined,
            "clamped": clamped,
            "int8": stored,
        }

    def moved(self) -> tuple[int, int]:
        """Bytes to and from memory after the sums: in one go, and with a tensor between steps."""
        cells = self.residual.numel()
        once = cells * (2 + 1)  # the residual is read, int8 written
        # int32 out; then fp32 in and out four times, the residual once; the last one int8.
        steps = cells * (4 + (4 + 4) + (4 + 4) + (4 + 2 + 4) + (4 + 4) + (4 + 1))
        return once, steps


def picture() -> Figure:
    """One filter's plane of a small layer, after each of the steps."""
    layer = Layer.of(1, 4, 5, 8, 2)
    panels: list[Grid] = []
    for name, values in layer.stages().items():
        plane = values[0, :, :, 0]
        whole = name in ("sums", "int8")
        flat = [int(v) if whole else round(float(v), 2) for v in plane.flatten()]
        ((grid, *_), *_) = draw(lc.Tensor(flat, Layout((4, 5), (5, 1)))).grids
        assert grid is not None
        panels.append(Grid(name, grid.rows, grid.columns, grid.cells))
    title = "A plane of a quantised layer, after each step of its epilogue"
    figure = Figure(title, tuple(tuple(panels[i : i + 2]) for i in (0, 2, 4)))
    # One colour for each cell in all panels: what the clamp will make of it.
    joined = layer.stages()["+ residual"][0, :, :, 0]
    ends = ((joined > 0).int() + (joined >= SIXES).int()).tolist()
    meanings = ("clamped to 0", "kept", f"clamped to {SIXES:g}")
    legend = [(Cell("", ramp(at / 2)), meaning) for at, meaning in enumerate(meanings)]
    return recoloured(figure, lambda cell, i, j: ramp(ends[i][j] / 2), legend)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run, compare with each step by torch in float64, count; 0, or 1 where a result differs."""
    parser = program(__file__, __doc__, "--device cuda", device="cpu", picture=".svg")
    options = parsed(parser, arguments)

    layer = Layer.of(2, 28, 28, 64, 64, options.device)
    print(f"epilogue  {layer.epilogue().structure}")
    y, stages = layer.run().cpu(), layer.stages()
    expected = stages["int8"]
    # fp32 in the place of float64 can fall on the other side of a half.
    apart = (y.double() - expected).abs()
    ties = float((apart > 0).double().mean())
    passed = float(apart.max()) <= 1 and ties < 1e-3
    zeros, sixes = (float((expected == v).double().mean()) for v in (0, round(SIXES / STEP)))
    print(f"results   {y.numel():,} of int8: {zeros:.0%} are 0, {sixes:.0%} are the largest")
    print(f"compared  {ties:.2%} differ by one, none by more: {'ok' if passed else 'FAILED'}")
    once, steps = layer.moved()
    print(f"memory    {once / 1e6:.2f} MB after the sums, {steps / 1e6:.2f} MB step by step")
    print(f"          {steps / once:.1f} times as much")
    picture().save(options.output)
    print(f"picture   {options.output}")
    return 0 if passed else 1


if __name__ == "__main__":
    raise SystemExit(main())
