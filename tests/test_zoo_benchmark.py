"""The benchmark over layers of real networks, on a CPU: rows, samples, halves, and the report."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from math import inf, nan, prod
from pathlib import Path

import pytest
import torch

BENCHMARKS = Path(__file__).resolve().parents[1] / "benchmarks"
BASE = {
    "kind": "conv", "N": [2, 1], "C": 16, "K": 24, "in": [9, 8], "taps": [3, 3], "stride": [1, 1],
    "padding": [1, 1], "dilation": [1, 1], "groups": 1, "output_padding": [0, 0], "bias": True,
    "out": [9, 8], "core": True, "uses": [["a", 2, 1, 3, 10.0]],
}  # fmt: skip
LAYERS = [
    {},
    {"C": 3, "in": [32, 32], "out": [32, 32], "uses": [["a", 2, 1, 1, 5.0]]},
    {"groups": 4},
    {"K": 16, "groups": 16, "uses": [["b", 2, 1, 2, 5.0]]},
    {
        "kind": "transposed", "stride": [2, 2], "output_padding": [1, 1], "out": [18, 16],
        "uses": [["b", 2, 1, 1, 5.0]],
    },
    {"taps": [1, 1], "padding": [0, 0], "N": [1, 1], "uses": [["b", 1, 1, 1, 5.0]]},
    {"taps": [1, 3], "padding": [0, 1], "dilation": [1, 1], "core": False},
]  # fmt: skip


@pytest.fixture
def file(tmp_path):
    layers = [{"id": i, **BASE, **other} for i, other in enumerate(LAYERS)]
    models = {"a": {"input": [3, 32, 32]}, "b": {"input": [1, 9, 8]}}
    path = tmp_path / "zoo.json"
    path.write_text(json.dumps({"models": models, "layers": layers}))
    return path


@pytest.fixture
def layers(load_benchmark, file):
    return load_benchmark("zoo_layers").read(file)


def test_layers_are_the_problems_that_the_file_lists(layers):
    for layer, other in zip(layers, LAYERS, strict=True):
        problem, raw = layer.problem(2), {**BASE, **other}
        made = problem.spatial if layer.transposed else problem.output_spatial
        assert list(made) == raw["out"]
        assert problem.groups == raw["groups"]
    assert [layer.first for layer in layers] == [False, True, False, False, False, False, False]
    assert "dgrad" not in layers[1].passes
    families = "channels not of 64", "few inputs", "grouped", "depthwise", "transposed"
    assert [layer.family for layer in layers[:5]] == list(families)
    assert [layer.family for layer in layers[5:]] == ["1x1, few pixels", "asymmetric"]


def test_a_file_that_is_none_is_refused(load_benchmark, tmp_path):
    path = tmp_path / "no.json"
    path.write_text('{"layers": [{}]}')
    with pytest.raises(ValueError, match=r"no\.json: expected JSON with models and layers"):
        load_benchmark("zoo_layers").read(path)


@pytest.mark.parametrize("kind", ["fprop", "dgrad", "wgrad"])
@pytest.mark.parametrize("dtype", ["fp16", "tf32"])
def test_both_sides_are_right(load_benchmark, layers, kind, dtype):
    cases, jobs = load_benchmark("zoo_cases"), load_benchmark("zoo_layers")
    for layer in layers:
        case = cases.ZooCase(jobs.ZooJob(layer, kind, dtype), "cpu")
        for call in (case.ours, case.theirs):
            assert case.is_right(case.error(call)), (layer, call)


def test_what_is_wrong_is_seen(load_benchmark, layers):
    """A missing element, a wrong one, a channel of another size, another shape."""
    cases, jobs = load_benchmark("zoo_cases"), load_benchmark("zoo_layers")
    case = cases.ZooCase(jobs.ZooJob(layers[0], "fprop", "fp16"), "cpu")
    right = case.theirs()
    assert case.is_right(case.errors_of(right))
    missing, off, shifted = right.clone(), right.clone(), right.clone()
    missing[0, 1, 2, 3] = nan  # of a channel that is not compared
    assert case.errors_of(missing) == (inf, inf)
    off[0, 0, 8, 7] += 1  # of about twelve
    assert not case.is_right(case.errors_of(off))
    shifted[..., 0] = case.layer.C**-0.5 * shifted[..., 0]
    assert not case.is_right(case.errors_of(shifted))
    assert case.errors_of(right[..., 1:]) == (inf, inf)


def test_the_flop_and_bytes_are_those_of_the_pass(load_benchmark, layers):
    jobs = load_benchmark("zoo_layers")
    plain = jobs.ZooJob(layers[0], "wgrad", "fp16")
    assert plain.flop == 2 * 2 * 9 * 8 * 24 * 9 * 16
    assert plain.elements == 2 * 9 * 8 * (16 + 24) + 24 * 9 * 16
    transposed = jobs.ZooJob(layers[4], "fprop", "fp16")
    assert transposed.flop == 2 * 2 * 9 * 8 * 24 * 9 * 16  # each input meets each tap
    grouped = jobs.ZooJob(layers[2], "fprop", "fp16", "1")
    assert grouped.flop == prod((2, 9, 8, 24, 9, 4))


def test_a_sample_has_every_family_and_its_beginning_too(load_benchmark, layers):
    module = load_benchmark("zoo_layers")
    many = [replace(layer, id=100 * i + layer.id) for i in range(20) for layer in layers]
    some = module.sample(many, 42, seed=1)
    assert len(some) == len({layer.id for layer in some}) == 42
    assert set(Counter(layer.family for layer in some).values()) == {6}
    assert len({layer.family for layer in some[:7]}) == 7
    assert some != module.sample(many, 42, seed=2)
    assert sorted(layer.id for layer in module.sample(many, 0)) == sorted(x.id for x in many)
    rare = [*many[:1], *(x for x in many if x.family != many[0].family)]
    assert many[0].family in {layer.family for layer in module.sample(rare, 10)}


def test_rows_of_equal_batches_are_one(load_benchmark, layers):
    module = load_benchmark("zoo_layers")
    rows = module.zoo_jobs([layers[0], layers[5]], ["fprop"], "fp16", ("training", "1"))
    assert [row.name for row in rows] == [
        "0 fprop fp16 training",
        "0 fprop fp16 1",
        "5 fprop fp16 training",
    ]
    assert [row.N for row in rows] == [2, 1, 1]


def test_halves_depend_on_the_name_of_a_model_alone(load_benchmark, layers):
    module = load_benchmark("zoo_layers")
    names = [f"net{i}" for i in range(200)]
    fitted = [module.is_fitted(name) for name in names]
    assert 60 < sum(fitted) < 140
    one, other = names[fitted.index(True)], names[fitted.index(False)]
    assert replace(layers[0], calls=((one, 1), (other, 1))).fitted
    assert not replace(layers[0], calls=((other, 1),)).fitted


def row_of(load_benchmark, layer, kind, ours, theirs):
    return load_benchmark("zoo_report").ZooRow(
        layer, kind, "fp16", "training", ours, theirs, 1.0, 1e-4, 1e-4, True, "a GPU"
    )


def test_means_weigh_by_calls_and_time(load_benchmark, layers):
    report = load_benchmark("zoo_report")
    rows = [
        row_of(load_benchmark, 0, "fprop", 10.0, 20.0),
        row_of(load_benchmark, 3, "fprop", 10.0, 5.0),
    ]
    by_id = {layer.id: layer for layer in layers}
    summary = report.Summary.of(rows, by_id)
    assert summary.mean == pytest.approx(1.0)
    assert (summary.below, summary.far_below, summary.lowest) == (0.5, 0.5, 0.5)
    more = [
        *rows,
        row_of(load_benchmark, 2, "fprop", 100.0, 100.0),
    ]  # of model a too, three calls each
    assert report.per_model(more, by_id) == pytest.approx({"a": 360 / 330, "b": 0.5})


def test_a_run_stops_when_its_time_is_over_and_goes_on(load_benchmark, file, gpu, capsys, tmp_path):
    zoo, report = load_benchmark("dense_zoo"), load_benchmark("zoo_report")
    gpu.says(is_available=True)
    now, asked = [0.0], []

    def measured(jobs, measure):
        assert measure is zoo.measure
        for job in jobs:
            now[0] += 10.0  # seconds
            asked.append(job.name)
            numbers = 10.0, 20.0, 5.0, 1e-4, 1e-4, job.layer.id != 2
            yield (
                "RuntimeError: no such kernel"
                if job.layer.id == 3
                else report.ZooRow(job.layer.id, job.kind, job.dtype, job.batch, *numbers)
            )

    tools = zoo.Tools(measured, now=lambda: now[0])
    out = tmp_path / "rows.jsonl"
    command = ["--zoo", str(file), "--out", str(out), "--types", "fp16,tf32", "--passes", "fprop"]
    options_of = load_benchmark("bench_dense")._options
    assert zoo.run(options_of([*command, "--minutes", "1"]), tools) == 1  # three rows of each part
    text = capsys.readouterr().out
    assert "fp16: 3 of 6 rows, and the time is over" in text
    assert len(asked) == 6
    before = list(asked)
    with out.open("a") as lines:
        lines.write('{"layer": 1, "ki')  # a run that was killed
    assert zoo.run(options_of([*command, "--resume"]), tools) == 1
    failed = {name for name in before if name.startswith("3 ")}
    assert len(set(asked)) == 12
    assert set(asked[6:]) & set(before) == failed  # what failed is tried again
    text += capsys.readouterr().out
    assert text.count("WRONG by 0.0001") == 2
    assert "10 rows, 2 failed, 2 wrong" in text
    asked.clear()
    plot = tmp_path / "sorted.svg"
    assert zoo.run(options_of([*command, "--report", "--plot", str(plot)]), tools) == 1
    assert not asked
    text = capsys.readouterr().out
    assert "fp16, batch training: time of cuDNN / ours" in text
    assert "fprop                                  5   2.00      2.00     0%     0%    2.00" in text
    assert plot.stat().st_size > 1000


def test_it_wants_a_gpu_and_types_that_it_knows(load_benchmark, file, capsys):
    main = load_benchmark("bench_dense").main
    if not torch.cuda.is_available():
        assert main(["--zoo", str(file)]) == 2
        assert "torch sees none" in capsys.readouterr().err
    with pytest.raises(SystemExit, match="expected some of fp16, bf16, tf32, got 'fp61'"):
        main(["--zoo", str(file), "--types", "fp61"])


def test_kernels_are_asked_for_in_processes(load_benchmark, file):
    """Every row once, and the row's kernels are chosen as on the GPU that is named."""
    zoo, asked = load_benchmark("dense_zoo"), []

    def in_processes(function, items, count, tick):
        asked.extend((function, item.name) for item in items)
        assert count == 3
        return [None] * len(items)

    command = ["--zoo", str(file), "--compile-only", "--compile", "3", "--types", "fp16"]
    options = load_benchmark("bench_dense")._options(command)
    assert zoo.run(options, zoo.Tools(in_processes=in_processes)) == 0
    assert len(asked) == 17  # six layers at the core, one of them without dgrad
    assert {function.func for function, _ in asked} == {zoo.compile_row}
    assert {function.keywords["machine"].name for function, _ in asked} == {"NVIDIA H200"}


def test_the_model_is_asked_what_it_expects(load_benchmark, file, capsys):
    """Each family and pass, its kernels, and how far it is from a floor; of no depthwise layer."""
    main = load_benchmark("bench_dense").main
    assert main(["--zoo", str(file), "--predict", "--types", "fp16,tf32"]) == 0
    text = capsys.readouterr().out
    assert "channels not of 64, fprop fp16: 1 rows, floor / expected" in text
    assert "transposed, dgrad tf32" in text
    assert "depthwise" not in text
    assert "m 144 n 24 k 144" in text
    assert torch.is_grad_enabled()  # what runs next in this process trains
