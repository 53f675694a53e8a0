"""``layoutconv compile``: the kernel that runs a view, why it was chosen, and its compiled code."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from .options import ExtentsParam, NewFile
from .targets import called, load_target
from .text_table import as_json, print_json, print_pairs, print_table
from .timeline_text import as_facts, lanes, sentences, some
from .tune import DTYPES, PASSES

if TYPE_CHECKING:
    import torch

    from ..gpu.explain import Explanation
    from ..kernels.compile.cubin import CubinKernel
    from ..planning.tile import TileConfig
    from ..planning.timeline import Timeline
    from ..view.epilogue import Epilogue
    from ..view.gemm_view import GemmView

ARCHITECTURES = "sm_80", "sm_86", "sm_89", "sm_90a"
_SHAPE = ExtentsParam("extents such as 2,32,64,64,64", 2, 5)


@click.command(
    "compile",
    short_help="Choose and compile the kernel of a view, and explain the choice.",
    epilog="""\b
examples:
  layoutconv compile --conv 8,64,64,64 --filter 64,3,3 --padding 1
  layoutconv compile --conv 2,32,64,64,64 --filter 64,3,3,3 --pass dgrad --arch sm_80
  layoutconv compile my_views.py:causal --ptx causal.ptx --sass-stats
  layoutconv compile my_views.py:causal --epilogue my_views.py:clamp

No GPU is needed. VIEW is FILE.py:NAME or MODULE:NAME, a GemmView or a function that returns one.
""",
)
@click.argument("view", required=False)
@click.option("--conv", type=_SHAPE, metavar="N,D,H,W,C", help="Shape of a convolution's input.")
@click.option(
    "--filter",
    "taps",
    type=_SHAPE,
    metavar="K,T,R,S",
    help="Output channels and taps of its filter.",
)
@click.option("--stride", type=click.IntRange(1), default=1, show_default=True)
@click.option("--padding", type=click.IntRange(0), default=0, show_default=True)
@click.option("--dilation", type=click.IntRange(1), default=1, show_default=True)
@click.option("--groups", type=click.IntRange(1), default=1, show_default=True)
@click.option("--pass", "direction", type=click.Choice(PASSES), default="fprop", show_default=True)
@click.option("--dtype", type=click.Choice(list(DTYPES)), default="float16", show_default=True)
@click.option("--epilogue", metavar="FILE.py:NAME",
              help="A step, such as a Pointwise, or an Epilogue to fuse.")  # fmt: skip
@click.option("--arch", type=click.Choice(ARCHITECTURES), default="sm_90a", show_default=True)
@click.option("--candidates", type=click.IntRange(1, 64), default=6, show_default=True,
              metavar="N", help="Tiles to list, as the cost model ranks them.")  # fmt: skip
@click.option("--ptx", type=NewFile(".ptx"), is_flag=False, flag_value="kernel.ptx",
              metavar="[FILE]", help="Write the PTX, to kernel.ptx by default.")  # fmt: skip
@click.option("--sass-stats", is_flag=True, help="Count the machine instructions.")
@click.option("--k-tiles", "rows", is_flag=True, help="Print the times of single k-tiles, too.")
@as_json
def compile_command(
    view: str | None,
    dtype: str,
    arch: str,
    candidates: int,
    ptx: Path | None,
    sass_stats: bool,
    rows: bool,
    as_json: bool,
    **problem: Any,
) -> None:
    """Choose the kernel of a VIEW, or of a convolution, for an architecture, and compile it.

    Prints the estimates of the cost model for other tiles, why better-ranked ones were refused, the
    registers, shared memory and CTAs of the kernel, and a timeline of when its warps load, multiply
    and store, estimated from the rates of the cost model.
    """
    import torch

    from ..gpu.explain import explain
    from ..planning.timeline import timeline

    conv, taps = problem.pop("conv"), problem.pop("taps")
    epilogue = _epilogue_of(problem.pop("epilogue"))
    if bool(view) == bool(conv) or bool(conv) != bool(taps):
        raise click.UsageError("Expected VIEW, or --conv and --filter.")
    name, precision = DTYPES[dtype]
    data = getattr(torch, name)
    made = partial(_views_of, data, precision, arch)
    views = [_view_of(view)] if view else made(conv, taps, **problem)
    found: list[dict[str, Any]] = []
    times: list[tuple[Timeline, TileConfig] | None] = []
    for one in views:
        why = explain(
            one, data, arch, precision=precision or "tf32", epilogue=epilogue, most=candidates
        )
        code, kernel = _compiled(why)
        if ptx:
            suffix = "" if len(views) == 1 else f".{len(found)}"
            ptx.with_suffix(f"{suffix}.ptx").write_text(code)
        described = _described(why, kernel, code, sass_stats=sass_stats)
        time = timeline(why.problem, why.spec.tile, why.splits, why.machine)
        times.append(None if time is None else (time, why.spec.tile))
        described["timeline"] = None if time is None else as_facts(time, why.spec.tile)
        found.append(described)
    if as_json:
        print_json(found)
        return
    for at, (described, drawn) in enumerate(zip(found, times, strict=True)):
        if at:
            click.echo()
        _show(described)
        if drawn is None:
            click.echo(
                "\nno timeline: a tile of several groups, or without products, has no k-tiles"
            )
        else:
            _show_timeline(*drawn, rows=rows)


def _views_of(
    dtype: torch.dtype,
    precision: str | None,
    arch: str,
    conv: Any,
    taps: Any,
    direction: str,
    **numbers: int,
) -> list[GemmView]:
    """Return the views that a call runs on the architecture."""
    from ..conv import ConvProblem
    from ..gpu.packing_choice import multiplied_on
    from ..planning.machine import MACHINES
    from ..tuning.tuned_problems import views_of

    of = multiplied_on(dtype, MACHINES[arch], precision)
    return list(views_of(ConvProblem(conv, taps, **numbers), direction, of))


def _view_of(target: str) -> GemmView:
    """Load the view that a target names."""
    from ..view.gemm_view import GemmView

    found = load_target(target)
    found = called(target, found) if callable(found) else found
    if not isinstance(found, GemmView):
        kind = type(found).__name__
        raise click.UsageError(f"Expected a GemmView or a function that returns one, got {kind}.")
    return found


def _epilogue_of(target: str | None) -> Epilogue | None:
    """Load the epilogue that a target names; a single step becomes an epilogue."""
    from ..view.epilogue import Epilogue

    if target is None:
        return None
    found = load_target(target)
    return found if isinstance(found, Epilogue) else Epilogue((found,))


def _compiled(why: Explanation) -> tuple[str, CubinKernel]:
    """Compile a kernel; return its PTX and the facts of its machine code."""
    import tempfile

    from ..kernels.compile.build import build
    from ..kernels.compile.cubin import read_cubin

    with tempfile.TemporaryDirectory() as folder:
        made = build(why.view, why.spec, dump=folder)
        (kernel,) = read_cubin(made.__cubin__).values()
        return made.__ptx__, kernel


def _described(
    why: Explanation, kernel: CubinKernel, code: str, *, sass_stats: bool
) -> dict[str, Any]:
    from ..gpu.explain import loaded_by

    spec, problem = why.spec, why.problem
    described = {
        "gemm": {"m": problem.m, "n": problem.n, "k": problem.k, "groups": problem.groups},
        "arch": spec.arch,
        "dtype": f"{spec.dtype} -> {spec.out_dtype}",
        "tile": str(spec.tile),
        "parts": why.splits,
        "vectors": list(spec.vectors),
        "loads": list(loaded_by(why.view, spec)),
        "chosen_by": "measurement" if why.measured else "cost model",
        "registers": kernel.registers,
        "stack_bytes": kernel.stack,
        "shared_bytes": kernel.static_shared + spec.smem_bytes,
        "threads": spec.tile.threads,
        "ctas_per_sm": spec.ctas_per_sm,
        "ptx_lines": code.count("\n"),
        "instructions": kernel.instructions,
        "candidates": [
            {
                "tile": str(c.tile),
                "parts": c.splits,
                "expected_us": round(c.microseconds, 1),
                "refused": c.refused,
            }
            for c in why.candidates
        ],
    }
    if sass_stats:
        described["sass"] = dict(kernel.opcodes.most_common())
    return described


def _show(found: dict[str, Any]) -> None:
    gemm = found["gemm"]
    sizes = "m = {m}, n = {n}, k = {k}".format(**gemm)
    sizes += f", {gemm['groups']} groups" if gemm["groups"] > 1 else ""
    memory = f"{found['registers']} a thread, {found['stack_bytes']} bytes of stack"
    a, b, d = found["vectors"]
    print_pairs(
        [
            ("GEMM", f"{sizes}, {found['dtype']}, {found['arch']}"),
            ("tile", f"{found['tile']}, by the {found['chosen_by']}"),
            ("split-K", f"{found['parts']} parts" if found["parts"] > 1 else "whole sums"),
            ("loads", "A by {}, B by {}".format(*found["loads"])),
            ("vectors", f"{a} elements of A, {b} of B, {d} of D in one access"),
            ("registers", memory),
            ("shared", f"{found['shared_bytes']} bytes a CTA"),
            ("CTA", f"{found['threads']} threads, {found['ctas_per_sm']} on an SM"),
            ("code", f"{found['instructions']} instructions, {found['ptx_lines']} lines of PTX"),
        ]
    )
    click.echo()
    columns = ["tile", "parts", "expected_us", "refused"]
    print_table(columns, [[c[name] for name in columns] for c in found["candidates"]])
    if "sass" in found:
        click.echo()
        print_table(["instruction", "count"], list(found["sass"].items()))


def _show_timeline(time: Timeline, tile: TileConfig, *, rows: bool) -> None:
    click.echo()
    first, *others = sentences(time)
    click.echo(first)
    print_pairs(lanes(time, tile))
    click.echo("\n".join(others))
    if rows:
        click.echo()
        columns = ["output tile", "k-tile", "load", "landed", "multiply", "done", "waited"]
        numbers = [list(map(str, (one.output_tile, one.k_tile))) for one in some(time.k_tiles)]
        times = [
            [f"{t:.2f}" for t in (one.load, one.landed, one.begin, one.end, one.waited)]
            for one in some(time.k_tiles)
        ]
        print_table(columns, [a + b for a, b in zip(numbers, times, strict=True)])
