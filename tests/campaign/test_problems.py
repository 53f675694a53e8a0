"""Problems are what their seeds say, travel through JSON and code, cover all that is promised."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest

from . import dense, ending, networks, operand, problems, sparse, sparse_networks, views
from .budget import BUDGETS, SIZES, kind_of
from .results import Result
from .shrink import shrink

SEEDS = range(0, 3000, 7)
each_family = pytest.mark.parametrize("family", problems.FAMILIES)


@each_family
@pytest.mark.parametrize("size", BUDGETS)
def test_every_problem_fits_its_budget_and_travels(family: str, size: str) -> None:
    of, budget = problems.family(family), BUDGETS[size]
    names = vars(dense) | vars(sparse) | vars(views) | vars(operand) | vars(ending)
    names |= vars(networks) | vars(sparse_networks)
    for seed in SEEDS[:60] if "networks" in family else SEEDS:
        p = of.draw(seed, size)
        assert p == of.draw(seed, size)
        assert of.fits(p), p
        assert problems.from_json(json.loads(json.dumps(problems.to_json(p)))) == p
        text = problems.code(p).splitlines()[-1].removeprefix("repeat(").removesuffix(")")
        assert eval(text, names) == p
        if family == "dense":
            assert p.products <= max(budget.products, 40 * p.C * p.K * 343)


@each_family
def test_seeds_of_a_kind_differ_in_sizes_alone(family: str) -> None:
    of = problems.family(family)
    names = {"dense": ("dtype", "C", "K", "taps", "stride", "padding", "ending", "gradients"),
             "sparse": ("dtype", "C", "K", "layer", "taps", "stride", "ending", "gradients"),
             "views": ("dtype", "steps", "letters", "out_dtype", "numbers"),
             "networks": ("blocks", "order", "packed", "type", "sizes"),
             "sparse_networks": ("program", "names", "packed", "type", "extents"),
             }[family]  # fmt: skip
    for first in range(0, 40 * SIZES, SIZES):
        some = [of.draw(seed, "gpu") for seed in range(first, first + SIZES)]
        assert {kind_of(seed) for seed in range(first, first + SIZES)} == {first // SIZES}
        assert len({tuple(getattr(p, name) for name in names) for p in some}) == 1
        assert len(set(some)) == SIZES


def shares(family: str, count: int = 4000) -> Counter[Any]:
    """Return how often each property holds, over many seeds of a GPU's problems."""
    found: Counter[Any] = Counter()
    draw = problems.family(family).draw
    for seed in range(0, count * SIZES, SIZES):
        p = draw(seed, "gpu")
        found.update(properties(p))
    return Counter({name: times / count for name, times in found.items()})


def properties(p: Any) -> list[Any]:
    if "networks" in p.family:
        blocks = [p.blocks[n] for n in p.order] if p.family == "networks" else []
        programs = blocks or (p.program,)
        steps = [one for program in programs for one in program]
        words = {word for one in steps for word in (one[0], *(w for pair in one[2] for w in pair))}
        words |= {name for name in ("training", "graph", "gradients") if getattr(p, name, False)}
        order = getattr(p, "order", ())
        words |= {"twice"} if len(set(order)) < len(order) else set()
        return [p.type, f"{p.rank}-D", *words, *p.roads, getattr(p, "names", "")]
    if p.family == "views":
        words = [name for name in "ab" if getattr(p, name).index]
        words += ["scatter"] if p.d.index else []
        words += ["column"] if p.sizes[1] == 1 else []
        return [p.type, len(p.a.modes), *words, *(step for step, _ in p.steps)]
    found = [p.type, p.rank, p.call, f"{p.rank}-D", *p.gradients, p.ending.activation, p.numbers]
    found += [
        name for name in ("scale", "bias", "residual", "out_dtype") if getattr(p.ending, name)
    ]
    found += ["own"] if p.ending.own else []
    found += ["one column"] if p.K == 1 or ("x" in p.gradients and p.C == 1) else []
    found += ["grouped"] if p.groups > 1 and not p.is_depthwise else []
    found += ["depthwise"] if p.is_depthwise else []
    found += [("taps", t) for t in set(p.taps)] + [("stride", s) for s in set(p.stride)]
    found += [("dilation", d) for d in set(p.dilation)]
    if p.family == "sparse":
        found += [p.layer, p.cloud, *(["given"] if p.given else [])]
        found += ["capacity"] if p.capacity >= 0 else []
        found += ["offsets"] if p.offsets else []
        found += ["343"] if p.filter[1:-1] == (7, 7, 7) else []
        found += ["empty image"] if p.empty else []
        found += ["absent"] if p.absent else []
    else:
        found += ["transposed"] if p.transposed else []
        found += ["empty"] if p.N == 0 else []
        found += ["asymmetric"] if len(set(p.taps)) > 1 else []
        found += ["near and far"] if any(n != f for n, f in p.padding) else []
        found += [("order", p.order_x), ("start", p.start_x)]
        found += ["output_padding"] if any(p.output_padding) else []
        found += ["statistics"] if p.statistics else []
    return found


WANTED: dict[str, dict[Any, float]] = {
    "dense": {
        "float16": 0.1, "bfloat16": 0.1, "float32 as tf32": 0.1, "float32 as fp32": 0.05,
        "float64": 0.04, "int8": 0.04, "float8_e4m3fn": 0.03, "float8_e5m2": 0.02,
        "complex64": 0.02, "complex128": 0.004, "1-D": 0.15, "2-D": 0.2, "3-D": 0.2,
        "one column": 0.2, "transposed": 0.15, "grouped": 0.06, "depthwise": 0.06, "x": 0.3,
        "w": 0.3, "bias": 0.05, "residual": 0.04, "scale": 0.02, "statistics": 0.03,
        "near and far": 0.1, "asymmetric": 0.1, "output_padding": 0.04, "out_dtype": 0.1,
        "empty": 0.01, "module": 0.02, "autocast": 0.02, "second order": 0.03, "graph": 0.03,
        "unbatched": 0.04, "rounded": 0.01, "normal": 0.1,
        **{("taps", t): 0.02 for t in range(1, 8)}, **{("stride", s): 0.02 for s in range(1, 5)},
        **{("dilation", d): 0.05 for d in range(1, 4)}, **{("start", s): 0.02 for s in (1, 2, 4)},
        **{("order", name): 0.03 for name in dense.ORDERS},
        **dict.fromkeys(("relu", "leaky_relu", "own", "gelu", "gelu_tanh", "silu", "sigmoid",
                         "tanh", "hardswish", "relu6"), 0.004),
    },
    "sparse": {
        "float16": 0.2, "bfloat16": 0.1, "float32 as tf32": 0.1, "float32 as fp32": 0.05,
        "float64": 0.05, **{f"{rank}-D": 0.08 for rank in range(1, 5)},
        **dict.fromkeys(sparse.CONVOLUTIONS, 0.07), **dict.fromkeys(sparse.POOLS, 0.01),
        **dict.fromkeys(sparse.CLOUDS, 0.02), "343": 0.005, "capacity": 0.03, "given": 0.02,
        "offsets": 0.02, "empty image": 0.1, "absent": 0.05, "grouped": 0.05, "depthwise": 0.05,
        "one column": 0.15, "x": 0.3, "w": 0.3, "module": 0.03, "autocast": 0.02, "map": 0.02,
        "second order": 0.03, "rounded": 0.01, **dict.fromkeys(ending.NARROW, 0.01),
    },
    "views": {"a": 0.1, "scatter": 0.02, 3: 0.1, "column": 0.1, "int8": 0.03,
              "float8_e4m3fn": 0.02, "float64": 0.02, **dict.fromkeys(views.STEPS, 0.1)},
    "networks": {
        "float32": 0.1, "float16": 0.1, "float16 autocast": 0.1, "1-D": 0.1, "2-D": 0.3,
        "3-D": 0.1, **dict.fromkeys(("conv", "norm", "act", "add"), 0.5),
        **dict.fromkeys(("transposed", "cat", "pool", "squeeze", "up", "like", "slice", "same",
                         "shared", "scale", "head", "mul", "instance", "group", "weight_norm",
                         "module inplace", "+=", "reflect", "twice", "gradients", *networks.ROADS,
                         "silu", "relu6", "hardswish", "gelu", "leaky_relu", "fold"), 0.02),
    },
    "sparse_networks": {
        "float32": 0.1, "float16": 0.1, "lc": 0.3, "spconv": 0.3,
        **{f"{rank}-D": 0.04 for rank in range(1, 5)},
        **dict.fromkeys((*sparse_networks.OPTIONS, *sparse_networks.ROADS, "fold", "max", "mean",
                         "silu", "module inplace", "training", "graph"), 0.02),
    },
}  # fmt: skip


@each_family
def test_everything_that_is_promised_is_drawn(family: str) -> None:
    found = shares(family, 300 if "networks" in family else 2000)
    missing = {name: found[name] for name, least in WANTED[family].items() if found[name] < least}
    assert not missing


@each_family
def test_a_failure_shrinks_to_what_it_needs(family: str) -> None:
    """A failure that needs two channels shrinks to a problem with little else."""
    start = next(
        p for p in (problems.family(family).draw(seed, "gpu") for seed in range(5000))
        if _fails(p) and (family not in ("dense", "sparse") or p.gradients)
    )  # fmt: skip

    def attempt(p: Any) -> Result:
        assert problems.family(family).fits(p)
        status = "wrong" if _fails(p) else "ok"
        return Result(p.family, "gpu", p.seed, p.kind, p.type, status)

    least, count = shrink(start, "wrong", attempt, most=400)
    assert _fails(least)
    assert 0 < count <= 400
    if "networks" in family:
        assert len(least.blocks[0] if family == "networks" else least.program) <= 3
        assert not least.roads
        assert problems.code(least).startswith("# import torch")
        return
    if family == "views":
        assert least.sizes[2] == 2
        assert not least.steps
        return
    assert (least.C, least.K, least.call, least.gradients) == (2, 1, "function", ())
    assert least.ending == ending.Ending()
    assert set(least.taps) == {1}


def _fails(p: Any) -> bool:
    if "networks" in p.family:  # what has both of two steps
        return {"add", "norm"} <= set(properties(p))
    if p.family == "views":
        return bool(p.sizes[2] > 1)
    return p.C > 1 and not p.is_depthwise and getattr(p, "is_convolution", True)


def test_what_no_call_takes_is_passed_over() -> None:
    p = dense.draw_dense(0)
    assert not dense.fits(replace(p, transposed=False, spatial=(1,) * p.rank, padding=((0, 0),) * (
        p.rank), taps=(3,) * p.rank))  # fmt: skip
    assert not dense.fits(replace(p, groups=p.C + 1))
