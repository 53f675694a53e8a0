"""Benchmarks want a GPU; their workloads, their comparisons and their reports do not."""

from __future__ import annotations

import json
import re
from math import isnan, nan, prod
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

import layoutconv as lc
from layoutconv.ops import dense_passes

BENCHMARKS = Path(__file__).resolve().parents[1] / "benchmarks"
NAMES = sorted(path.stem for path in BENCHMARKS.glob("*.py"))


@pytest.fixture
def small(load_benchmark):
    """A row over a workload that a CPU does at once."""
    workloads = load_benchmark("dense_workloads")

    def job(name, kind, dtype):
        return workloads.Job(workloads.Workload(name, *SMALL[name]), kind, dtype)

    return job


@pytest.mark.parametrize("name", NAMES)
def test_it_loads_without_a_gpu(load_benchmark, name):
    assert load_benchmark(name).__doc__


# GFLOP of a pass, padding counted, and the voxels of an image.
KNOWN = {
    "unet_128": (231.93, 128**3),
    "unet_64": (115.96, 64**3),
    "unet_32": (57.98, 32**3),
    "unet_16": (28.99, 16**3),
    "unet_8": (5.662, 8**3),
    "unet_down": (57.98, 64**3),
    "r3d_56": (44.39, 8 * 56 * 56),
    "r3d_28": (22.20, 4 * 28 * 28),
    "r3d_14": (11.10, 2 * 14 * 14),
    "vae": (231.93, 16 * 64 * 64),
    "vae_big": (463.86, 8 * 64 * 64),
    "dilated": (57.98, 32 * 64 * 64),
    "resnet_56": (14.80, 56 * 56),
    "resnet_28": (14.80, 28 * 28),
    "resnet_14": (14.80, 14 * 14),
    "resnet_7": (14.80, 7 * 7),
    "resnet_1x1": (6.577, 56 * 56),
    "unpadded": (927.7, 4 * 2 * 2),  # example 59 of CUTLASS
}


def test_the_workloads_are_those_that_are_known(load_benchmark):
    module = load_benchmark("dense_workloads")
    table = {w.name: w for w in (*module.DENSE, module.EXAMPLE_59)}
    assert table.keys() == KNOWN.keys()
    for name, (gflop, voxels) in KNOWN.items():
        work = table[name]
        assert work.flop / 1e9 == pytest.approx(gflop, rel=1e-3)
        assert prod(work.voxels) == voxels
        assert work.problem.output == (work.N, *work.voxels, work.K)
        view = lc.conv.fprop_view(work.problem)
        assert 2 * view.m * view.n * view.k == work.flop


def test_every_row_is_there_once(load_benchmark):
    module = load_benchmark("dense_workloads")
    names = [job.name for job in module.jobs()]
    assert len(set(names)) == len(names)
    for work in module.DENSE:
        for kind in module.PASSES:
            assert {f"{work.name} {kind} fp16", f"{work.name} {kind} tf32"} <= set(names)
    quick = [job.name for job in module.jobs(quick=True)]
    assert set(quick) < set(names)
    assert {job.dtype for job in module.jobs()} == set(load_benchmark("dense_cases").DTYPES)


# N, C, spatial, K, taps, stride, padding, dilation, groups
SMALL = {
    "3d": (3, 8, (4, 5, 6), 12, (3, 3, 3)),
    "strided": (2, 3, (9, 8), 20, (3, 2), 2),
    "dilated": (1, 24, (9,), 4, (3,), 1, 2, 2),
    "not reached": (2, 4, (6, 7), 4, (1, 1), 2, 0),
    "wide": (4, 24, (9,), 20, (3,)),
    "grouped": (2, 6, (5, 4), 9, (3, 3), 1, 1, 1, 3),
    "depthwise": (2, 5, (7, 6), 10, (3, 3), 2, 1, 1, 5),
}


@pytest.mark.parametrize("name", SMALL)
@pytest.mark.parametrize("kind", ["fprop", "dgrad", "wgrad"])
@pytest.mark.parametrize("dtype", ["fp16", "bf16", "fp32"])
def test_both_sides_are_compared_with_float64(load_benchmark, small, name, kind, dtype):
    job = small(name, kind, dtype)
    case = load_benchmark("dense_cases").case_of(job, "cpu")
    bound = {"fp16": 1e-3, "bf16": 1e-2, "fp32": 1e-6}[dtype]
    assert case.error() < bound
    assert case.peer_error() < bound
    assert case.peer == "cuDNN"


@pytest.mark.parametrize("kind", ["fprop", "dgrad", "wgrad"])
def test_what_is_wrong_is_seen(load_benchmark, small, kind, spoiled):
    job = small("wide", kind, "fp32")
    cases = load_benchmark("dense_cases")

    def unwritten(out):
        out.view(-1)[-1] = nan  # of a channel that is not compared, as some are enough

    def wrong(out):
        out.view(-1)[0] += 1

    spoiled(unwritten, owner=dense_passes)
    assert isnan(cases.case_of(job, "cpu").error())
    spoiled(wrong, owner=dense_passes)
    assert cases.case_of(job, "cpu").error() > 1e-3


@pytest.mark.parametrize("dtype", ["int8", "e4m3", "e5m2"])
def test_types_that_torch_does_not_multiply_have_no_peer(load_benchmark, small, dtype):
    job = small("3d", "fprop", dtype)
    case = load_benchmark("dense_cases").case_of(job, "cpu")
    assert case.theirs is None
    assert case.error() == 0 if dtype == "int8" else 0 < case.error() < 1e-3


def test_a_gradient_in_tf32_is_timed_with_the_copy_of_its_filter(
    load_benchmark, small, gpu, watched, copied_from
):
    from layoutconv.gpu import filter_choice

    copies = watched("k_major_copy", filter_choice)
    gpu.runs_kernels()
    gpu.like("sm_90a")
    copied_from(1, 1)
    for name, dtype, times in (("strided", "tf32", 1), ("strided", "fp32", 0), ("3d", "fp16", 0)):
        case = load_benchmark("dense_cases").case_of(small(name, "dgrad", dtype), "cpu")
        copies.clear()
        case.ours()
        assert len(copies) == times
        assert case.error() < 1e-3


@pytest.mark.parametrize("kind", ["bias+relu", "statistics", "clamp"])
def test_fused_passes_are_beside_our_own(load_benchmark, small, kind):
    job = small("3d", kind, "fp16")
    case = load_benchmark("dense_cases").case_of(job, "cpu")
    assert case.peer == "ours, bare"
    assert case.error() < 1e-3
    assert case.peer_error() < 1e-3


def test_a_row_says_what_is_wrong_with_it(load_benchmark):
    row_of = load_benchmark("bench_dense").Row
    row = row_of("vae fprop fp16", 400.0, 580.0, "cuDNN", 300.0, 2.1e-4, 2.1e-4, 0.4)
    assert row.right
    assert "0.75x cuDNN (300.0 us)" in str(row)
    assert "below" not in str(row)
    slow = row_of("vae fprop fp16", 1000.0, 232.0, "cuDNN", 300.0, 2.1e-4, 2.1e-4, 0.4)
    assert str(slow).endswith("below 0.4x")
    for error in (2.4e-4, nan):
        bad = row_of("vae fprop fp16", 400.0, 580.0, "cuDNN", 300.0, error, 2.1e-4, 0.4)
        assert not bad.right
        assert "WRONG" in str(bad)
    alone = row_of("vae fprop int8", 400.0, 580.0, "", None, 0.0, None, None)
    assert alone.ratio is None
    assert alone.right


def test_a_row_that_fails_does_not_end_the_run(load_benchmark, gpu, capsys, tmp_path):
    """Every other row is reported, in the JSON too, and the exit status says that one failed."""
    bench = load_benchmark("bench_dense")

    def measured(chosen, measure, repeats):
        for i, job in enumerate(chosen):
            work = "fp16", 1e9, 1e6, 5.0
            row = bench.Row(job.name, 10.0, 1.0, "cuDNN", 20.0, 1e-4, 1e-4, job.target, *work)
            yield "RuntimeError: no such kernel" if i == 1 else row

    def run(*arguments):
        return bench.run(bench._options(arguments), measured, lambda: {"lc.conv3d": 5.0})

    gpu.says(is_available=True, get_device_name="NVIDIA H200")
    gpu.says(device_count=1, get_device_capability=(9, 0))  # which cuDNN's version asks for
    found, picture = tmp_path / "rows.json", tmp_path / "rows.svg"
    options = [
        "--rows",
        "^vae (fprop|dgrad|wgrad) fp16",
        "--json",
        str(found),
        "--plot",
        str(picture),
    ]
    assert run(*options) == 1
    told = capsys.readouterr()
    assert "vae dgrad fp16                 FAILED: RuntimeError: no such kernel\n" in told.out
    assert re.search(r"^vae wgrad fp16 .* floor +2\.0x +2\.00x cuDNN", told.out, re.M)
    assert "2 rows, 1 failed, 0 wrong" in told.out
    content = json.loads(found.read_text())
    assert [row["ratio"] for row in content["rows"]] == [2.0, 2.0]
    assert content["failed"] == ["vae dgrad fp16"]
    assert picture.exists()
    assert run("--rows", "vae fprop fp16") == 0


def test_floors_are_those_of_the_machine(load_benchmark):
    """Products or bytes, whichever take longer; no figure where the machine is not known."""
    roof_of = load_benchmark("roofs").roof_of
    h200, h100, pcie = map(roof_of, ("NVIDIA H200", "NVIDIA H100 80GB HBM3", "NVIDIA H100 PCIe"))
    assert h200.floor("fp16", 990e6, 0) == h200.floor("tf32", 495e6, 0) == 1.0
    assert h200.floor("fp16", 990e6, 9.6e6) == 2.0
    assert h100.floor("fp16", 0, 3.35e6) == 1.0 < pcie.floor("fp16", 0, 3.35e6)
    assert h200.floor("fp64", 1, 1) is None
    assert roof_of("Tesla K80") is None
    assert roof_of("NVIDIA A100-SXM4-80GB").bandwidth > roof_of("NVIDIA A100 40GB").bandwidth
    work = {w.name: w for w in load_benchmark("dense_workloads").DENSE}["resnet_1x1"]
    assert work.elements == 64 * 56 * 56 * (64 + 256) + 64 * 256


def test_a_ratio_to_a_peer_that_checks_nothing_says_so(load_benchmark):
    bench = load_benchmark("bench_algebra")
    rows = [bench.Row(bench.CONSTRUCT, {"layoutconv": 0.5, "peer": 0.2})]
    [note] = bench.notes(rows, {"peer": SimpleNamespace(Layout=lambda shape, stride: shape)})
    assert "peer checks nothing" in note
    assert bench.notes(rows, {"peer": lc.algebra}) == []


def test_charts_are_bars_and_a_roofline(load_benchmark, tmp_path, watched):
    from matplotlib import pyplot

    bars, row_of = load_benchmark("bars"), load_benchmark("bench_dense").Row
    drawn = watched("close", pyplot, note=lambda call: call.args[0])
    rows = [
        row_of(f"vae fprop {dtype}", 10.0, 1.0, "cuDNN", 20.0, 0, 0, None, dtype, flop, 1e6, 1.0)
        for dtype, flop in (("fp16", 1e8), ("tf32", 1e9))
    ]
    bars.plot(rows, "a run", tmp_path / "a.svg", load_benchmark("roofs").roof_of("NVIDIA H200"))
    bars.plot(rows, "a run", tmp_path / "b.png")
    both, alone = drawn
    chart, roofline = both.axes
    assert [bar.get_width() for bar in chart.patches] == [1.0, 1.0]
    lines = [(line.get_xdata(), line.get_ydata()) for line in roofline.lines]
    assert [(x[0], y[0]) for x, y in lines[::2]] == [(100, 10.0), (1000, 100.0)]
    for (x, y), peak in zip(lines[1::2], (990, 495), strict=True):
        assert y[-1] == peak  # above what any row reaches, and sloped by the bandwidth before
        assert y[0] == pytest.approx(x[0] * 4.8)
    assert len(alone.axes) == 1
    assert all(path.stat().st_size > 5000 for path in tmp_path.iterdir())


class _Spconv:
    """The parts of spconv that the benchmark uses: a tensor keeps maps, and a call copies them."""

    __name__ = "layoutconv"
    built = 0

    class SparseConvTensor:
        def __init__(self, features, cells, shape, images, maps=None):
            self.features, self.maps = features, maps or {}

        def replace_feature(self, features):
            return _Spconv.SparseConvTensor(features, None, None, None, self.maps)

    class SubMConv3d(torch.nn.Module):
        def __init__(self, C, K, size, bias, indice_key):
            super().__init__()
            self.weight = torch.nn.Parameter(torch.empty(K, size, size, size, C))

        def cuda(self):
            return self

        def forward(self, x):
            maps = dict(x.maps)
            if "map" not in maps:
                _Spconv.built += 1
                maps["map"] = True
            features = x.features * self.weight.sum()
            return _Spconv.SparseConvTensor(features, None, None, None, maps)


@pytest.mark.parametrize("training", [False, True])
def test_a_peer_is_timed_with_the_map_at_hand(load_benchmark, training):
    bench = load_benchmark("bench_sparse")

    class Data(bench._Data):
        def _allow_tf32(self, spconv):
            pass

    data = object.__new__(Data)
    cloud = bench.Cloud("cells", torch.zeros(5, 4, dtype=torch.int32), (1, 1, 1), 1)
    data.job = bench.Job("forward", cloud, "fp16", 2)
    data.features, data.gradient = torch.ones(5, 2), torch.ones(5, 2)
    data.weight = torch.full((2, 3, 3, 3, 2), 0.5)
    _Spconv.built = 0
    call = data.peer(_Spconv, training=training)
    assert _Spconv.built == 1
    found = [call() for _ in range(3)]
    assert _Spconv.built == 1
    wanted = data.features * 54.0  # once through the layer, not twice
    assert torch.equal(found[-1][0] if training else found[-1], wanted)


def test_the_host_is_timed_with_calls_that_agree(load_benchmark):
    for name, (ours, theirs) in load_benchmark("bench_host").calls(
        (1, 8, 4, 5, 6), "cpu", torch.float32
    ):
        for _ in range(2):
            torch.testing.assert_close(ours(), theirs(), atol=1e-4, rtol=1e-4, msg=name)


def test_eager_calls_of_a_point_cloud_agree(load_benchmark):
    calls = dict(load_benchmark("bench_host").sparse_calls("cpu", torch.float32))
    results = [calls[name]().features for name in ("module, no gradient", "module, forward")]
    torch.testing.assert_close(*results)
    assert calls["module and backward"]().shape == (16, 3, 3, 3, 16)
    assert calls["subm_conv"]().features.shape == (64, 16)


def test_without_a_gpu_it_says_so(load_benchmark, gpu, capsys):
    gpu.says(is_available=False)
    assert load_benchmark("bench_dense").main([]) == 2
    assert "it measures a GPU" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["bench_reduce", "bench_template"])
def test_scripts_without_rows_of_their_own_say_so_too(load_benchmark, gpu, capsys, name):
    gpu.says(is_available=False)
    with pytest.raises(SystemExit) as ended:
        load_benchmark(name).main([])
    assert ended.value.code == 2
    assert "error: it measures a GPU, and torch sees none" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("--repeats", "0", "expected an integer >= 1, got '0'"),
        ("--repeats", "-1", "expected an integer >= 1, got '-1'"),
        ("--iterations", "2.5", "expected an integer >= 1, got '2.5'"),
        ("--json", "no/such/folder.json", "expected a file in a folder"),
        ("--json", ".", "expected a file in a folder"),
    ],
)
def test_options_are_checked_before_anything_is_measured(
    load_benchmark, capsys, option, value, message
):
    parser = load_benchmark("benchmark_options").program("", "repeats", "iterations", "json")
    with pytest.raises(SystemExit):
        parser.parse_args([f"{option}={value}"])
    assert message in capsys.readouterr().err
