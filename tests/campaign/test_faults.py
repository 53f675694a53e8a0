"""Faults that are planted in results: the oracle flags each, and nothing that is right."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from . import dense_run, faults, sparse_run, views_run
from .bench import Bench
from .dense import Dense
from .ending import Ending
from .faults import Fault
from .oracle import Expected, WrongResultError, check, rounded
from .sparse import Sparse
from .views import View, draw_view

PLAIN = Dense(
    seed=1, dtype="float16", N=2, C=24, K=16, spatial=(9, 11), taps=(3, 3), stride=(1, 1),
    dilation=(1, 1), padding=((1, 1), (1, 1)), numbers="exact",
)  # fmt: skip
PROBLEMS = {
    "plain": PLAIN,
    "bf16 to fp32": replace(PLAIN, dtype="bfloat16", ending=Ending(out_dtype="float32")),
    "strided": replace(PLAIN, stride=(2, 1), dilation=(1, 2), dtype="float32"),
    "transposed": replace(PLAIN, transposed=True, output_padding=(0, 0), dtype="float32"),
    "one column": replace(PLAIN, K=1, dtype="float32"),
    "1-D": replace(PLAIN, spatial=(40,), taps=(7,), stride=(1,), dilation=(1,), padding=((3, 3),)),
}
EVERYWHERE = [
    faults.no_border_of_a_tap, faults.a_tap_twice, faults.one_product_missing,
    faults.a_k_tile_short, faults.rows_moved, faults.a_stale_row, faults.one_unwritten,
]  # fmt: skip
ENDED = replace(PLAIN, dtype="float32", numbers="exact")
ALL = Ending("float32", "float16", "float32", "relu")
LEARNS = replace(ENDED, ending=replace(ALL, scale=""), gradients=("x", "w", "bias", "residual"))
OF_THE_END: list[tuple[Fault, Dense]] = [
    (faults.another_bias, replace(ENDED, ending=Ending(bias="float16"))),
    (faults.no_residual, replace(ENDED, ending=Ending(residual="float16"))),
    (faults.no_scale, replace(ENDED, ending=ALL)),
    (faults.no_activation, replace(ENDED, ending=ALL)),
    (faults.columns_moved, replace(ENDED, ending=ALL)),
    (faults.wrapped, replace(PLAIN, dtype="int8", ending=Ending(out_dtype="int8"), C=96)),
    (faults.a_row_not_counted, replace(PLAIN, statistics=True)),
    (faults.an_image_short, LEARNS),
    (faults.unmasked, LEARNS),
    *((faults.of_gradient(f"grad {name}", mode), LEARNS) for name, mode in
      (("x", 0), ("x", -1), ("w", 0), ("w", -1), ("bias", 0), ("residual", 1))),
]  # fmt: skip
NORMAL = replace(PLAIN, numbers="normal")
WIDE = replace(NORMAL, ending=Ending(out_dtype="float32"))
TF32 = replace(NORMAL, dtype="float32", C=64, N=4)
OF_ROUNDING: list[tuple[Fault, Dense, bool]] = [
    (faults.summed_in_fp16, replace(PLAIN, dtype="float32", C=96), False),
    (faults.summed_in_fp16, replace(WIDE, C=96), False),
    (faults.summed_in_bf16, NORMAL, False),
    (faults.cut_off, NORMAL, False),
    (faults.tf32_cut_off, TF32, True),
    (faults.tf32_cut_off, replace(TF32, numbers="rounded"), True),
    (faults.tf32_rounded, TF32, False),  # where three products of tf32, or fp32, are promised
    (faults.a_k_tile_short, NORMAL, True),
    (faults.one_unwritten, NORMAL, True),
    (faults.no_border_of_a_tap, NORMAL, True),
]


# What small numbers do not show: results are then neither rounded to fp16 nor too large for int8.
RARE = faults.summed_in_fp16, faults.wrapped
SEEDS = range(4)


def caught(p: Dense, fault: Fault, *, tensor_cores: bool = False) -> bool:
    """Return whether the numbers of every seed show a fault, or of some seed if it is rare."""
    found = [outcome(replace(p, seed=s), fault, tensor_cores=tensor_cores) for s in SEEDS]
    return any(found) if fault in RARE else all(found)


def outcome(p: Dense, fault: Fault | None = None, *, tensor_cores: bool = False) -> str:
    """Return the oracle's message on a correct call whose results a fault changes; "" if right."""
    bench = Bench("cpu", torch.device("cpu"), tensor_cores)
    if fault is not None:
        bench.fault = lambda results, operands: fault(p, operands, results)
    try:
        dense_run.run_dense(p, bench)
    except WrongResultError as wrong:
        return str(wrong)
    return ""


@pytest.mark.parametrize("fault", EVERYWHERE, ids=lambda f: f.__name__)
@pytest.mark.parametrize("name", PROBLEMS)
def test_faults_of_sums(name: str, fault: Fault) -> None:
    assert caught(PROBLEMS[name], fault)


@pytest.mark.parametrize("name", PROBLEMS)
def test_what_is_right_is_no_fault(name: str) -> None:
    for seed in SEEDS:
        assert outcome(replace(PROBLEMS[name], seed=seed)) == ""


@pytest.mark.parametrize(("fault", "p"), OF_THE_END, ids=lambda v: getattr(v, "__name__", ""))
def test_faults_of_the_end(fault: Fault, p: Dense) -> None:
    assert outcome(p) == ""
    assert caught(p, fault)


@pytest.mark.parametrize(
    ("fault", "p", "tensor_cores"), OF_ROUNDING, ids=lambda v: getattr(v, "__name__", "")
)
def test_faults_of_rounding(fault: Fault, p: Dense, tensor_cores: bool) -> None:
    assert caught(p, fault, tensor_cores=tensor_cores)


def test_what_tensor_cores_do_is_no_fault() -> None:
    for p in (TF32, replace(TF32, numbers="rounded"), replace(TF32, C=3, K=1, taps=(1, 1))):
        for seed in SEEDS:
            some = replace(p, seed=seed)
            assert outcome(some, faults.tf32_rounded, tensor_cores=True) == ""


def test_sums_of_a_filter_under_autocast() -> None:
    """Float32, as kernels have them, or rounded, as torch has them; no mixture of both."""
    p = replace(PLAIN, call="autocast", N=3, spatial=(17, 9), taps=(1, 1), padding=((0, 0),) * 2,
                gradients=("x", "w"))  # fmt: skip
    assert outcome(p) == ""

    def sums(p: Dense, o: faults.Operands, r: faults.Results) -> faults.Results:
        x = rounded(faults.wide(o.x), torch.float16)
        exact = faults.bilinear(p).back_w(faults.wide(o.grad), faults.wide(x)).float()
        assert not torch.equal(exact.half().float(), exact)
        return {**r, "grad w": exact}

    def one_of_them_rounded(p: Dense, o: faults.Operands, r: faults.Results) -> faults.Results:
        exact = sums(p, o, r)["grad w"]
        some = (exact.half().float() != exact).flatten().nonzero()
        assert len(some) > 1
        exact.flatten()[some[0]] = exact.flatten()[some[0]].half().float()
        return {**r, "grad w": exact}

    def wide_gradient_of_x(p: Dense, o: faults.Operands, r: faults.Results) -> faults.Results:
        return {**r, "grad x": r["grad x"] + 2.0**-11}

    assert outcome(p, sums) == ""
    assert "grad w" in outcome(p, one_of_them_rounded)
    assert "grad x" in outcome(p, wide_gradient_of_x)


def test_a_result_that_changes_from_call_to_call() -> None:
    calls: list[int] = []

    def fault(p: Dense, o: object, r: faults.Results) -> faults.Results:
        calls.append(1)
        return {**r, "y": r["y"] + len(calls) * 0.001}

    assert "differ from call to call" in outcome(NORMAL, fault)


@pytest.mark.parametrize("place", ["input", "before", "behind"])
def test_memory_that_is_only_read(place: str) -> None:
    def fault(p: Dense, o: faults.Operands, r: faults.Results) -> faults.Results:
        at = {"input": 0, "before": -1, "behind": o.x.numel()}[place]
        start = o.x.storage_offset() + at
        o.x.as_strided((1,), (1,), start).fill_(7)
        return r

    assert outcome(PLAIN, fault).startswith("x: memory that is only read")


# -- sparse layers and views -----------------------------------------------------------------------

CLOUD = Sparse(
    seed=3, layer="subm", dtype="float16", C=12, K=16, extents=(9, 8, 7), taps=(3, 3, 3),
    stride=(1,) * 3, dilation=(1,) * 3, padding=((0, 0),) * 3, rows=120,
    output_padding=(0,) * 3, images=2, gradients=("x", "w"),
)  # fmt: skip
LAYERS = {
    "subm": CLOUD,
    "strided": replace(CLOUD, layer="strided", stride=(2,) * 3, padding=((1, 1),) * 3),
    "inverse": replace(CLOUD, layer="inverse", stride=(2,) * 3, taps=(2,) * 3),
    "max": replace(CLOUD, layer="max", stride=(2,) * 3, taps=(2,) * 3, K=12, gradients=("x",)),
}


SPARSE_FAULTS = "a row", "rows moved", "a pair", "cells", "grad x", "grad w"


def spoiled(results: faults.Results, fault: str, p: Sparse) -> faults.Results | None:
    """Results with a fault; None where there is nothing to spoil."""
    found = dict(results)
    name = {"grad x": "grad x", "grad w": "grad w", "cells": "cells"}.get(fault, "y")
    if name not in found:
        return None
    value = found[name].clone()
    if fault == "rows moved":
        value = value.roll(1, 0)
    elif fault == "a pair":  # one product too many
        value[len(value) // 2] += 1
    elif fault == "cells":
        value[0], value[1] = found[name][1], found[name][0]
    else:
        value[-1] = 0
    if torch.equal(value, found[name]):
        return None
    found[name] = value
    return found


@pytest.mark.parametrize("fault", SPARSE_FAULTS)
@pytest.mark.parametrize("layer", LAYERS)
def test_faults_of_sparse_layers(layer: str, fault: str) -> None:
    p, seen = LAYERS[layer], []
    sparse_run.run_sparse(p, Bench("cpu", torch.device("cpu")))

    def planted(results: faults.Results, *operands: object) -> faults.Results:
        spoilt = spoiled(results, fault, p)
        seen.append(spoilt is not None)
        return results if spoilt is None else spoilt

    if (layer, fault) in (("max", "grad w"), ("subm", "cells"), ("inverse", "cells")):
        return  # it has none, or they are those that are put in
    with pytest.raises(WrongResultError):
        sparse_run.run_sparse(p, Bench("cpu", torch.device("cpu"), fault=planted))
    assert all(seen)


def test_faults_of_views() -> None:
    """An element more or less than the view says, in memory that is given."""
    tried = 0
    for seed in range(40):
        p = draw_view(seed, "tiny")
        if not p.out or p.d.span < 3 or p.dtype == "int4":
            continue
        views_run.run_view(p, Bench("cpu", torch.device("cpu")))
        for fault in ("beside", "unwritten", "one more"):
            bench = Bench("cpu", torch.device("cpu"), fault=_spoiled_view(fault))
            tried += 1
            with pytest.raises(WrongResultError):
                views_run.run_view(p, bench)
    assert tried > 30


def _spoiled_view(fault: str) -> Callable[..., object]:
    def planted(results: tuple[torch.Tensor, object], made: views_run.Tensors) -> object:
        d, statistics = results
        place, there = made.p.d.addresses(made.indices[2], 0, 1)
        if fault == "beside" or not there.any():
            made.held[-100] = 3
        else:
            at = int(place[there][-1])
            value = d[at].double()
            d[at] = 77 if fault == "unwritten" and value != 77 else value + 300
        return d, statistics

    return planted


def test_a_view_draws_itself_with_a_seed() -> None:
    assert isinstance(draw_view(5), View)


def test_what_is_below_int8_is_its_least_number():
    value = torch.tensor([-300.0, 300.0], dtype=torch.float64)
    want = Expected(value, torch.full_like(value, 0.25))
    assert check("y", torch.tensor([-128, 127], dtype=torch.int8), want, torch.int8) == 0
    with pytest.raises(WrongResultError, match="-127, not -128"):
        check("y", torch.tensor([-127, 127], dtype=torch.int8), want, torch.int8)
