"""The commands ``info``, ``cache``, ``tune``, ``bench``; GPUs, clocks and scripts are stand-ins."""

from __future__ import annotations

import json
import os
import re
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from layoutconv.cli import bench, info, main
from layoutconv.gpu import measured_choices
from layoutconv.gpu import plan as gpu_plan
from layoutconv.kernels.compile import store
from layoutconv.planning.machine import MACHINES, Machine
from layoutconv.planning.tile import TileConfig

from ..stand_ins import Clock, Gpu

MACHINE = replace(MACHINES["sm_90a"], name="NVIDIA H200")
CHOICE = measured_choices.MeasuredChoice(
    TileConfig((64, 64, 64)), 1, "m=9 n=8 k=7 float16", 5.0, 6.0
)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("LAYOUTCONV_CACHE_DIR", str(tmp_path / "cache"))
    (tmp_path / "cache").mkdir()
    return tmp_path / "cache"


@pytest.fixture
def kept(folder: Path) -> Path:
    """A cache: two kernels, a choice, what two broken-off processes left, and a stranger's file."""
    for digest in ("a" * 64, "b" * 64):
        (folder / f"{digest}.o").write_bytes(bytes(1000))
    (folder / "notes.o").write_text("not ours")
    (folder / "tmpabc.o").write_text("being written")
    (folder / "tmpold.o").write_text("left over")
    hours_ago = time.time() - 7200
    os.utime(folder / "tmpold.o", (hours_ago, hours_ago))
    measured_choices.remember("c" * 64, MACHINE, CHOICE)
    return folder


def told(capsys: pytest.CaptureFixture[str]) -> Any:
    return json.loads(capsys.readouterr().out)


def test_info_counts_what_is_kept(kept: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["info"]) == 0
    lines = dict(
        re.split(r"  +", line, maxsplit=1) for line in capsys.readouterr().out.splitlines()
    )
    assert lines["kernels"] == "2 kept, 2.0 kB of at most 4.0 GB: cache list names them"
    assert lines["tuned"].startswith("1 choices")
    assert lines["cache"] == str(kept)
    assert lines["torch"] == torch.__version__
    assert main(["info", "--json"]) == 0
    found = told(capsys)
    assert found["cache"] == {
        "folder": str(kept), "kernels": 2, "bytes": 2000, "limit": 4_000_000_000, "tuned": 1,
        "shipped": measured_choices.shipped_count(),
    }  # fmt: skip


def test_info_names_gpus(gpu: Gpu, capsys: Any, tmp_path: Path) -> None:
    numbers = {"total_memory": 141 << 30, "multi_processor_count": 132}
    found = [
        SimpleNamespace(name="NVIDIA H200", major=9, minor=0, **numbers),
        SimpleNamespace(name="Tesla V100", major=7, minor=0, **numbers),
    ]
    gpu.says(device_count=2, get_device_properties=found.__getitem__)
    assert main(["info"]) == 0
    out = capsys.readouterr().out
    assert "NVIDIA H200, compute capability 9.0, 141 GiB\n" in out
    assert "Tesla V100, compute capability 7.0, 141 GiB, too old for kernels\n" in out
    version = tmp_path / "version"
    version.write_text("NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.65.06  Sun Jul 27\n")
    assert str(info._driver(version)).startswith("580.65.06")


def test_cache_list(kept: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["cache", "list"]) == 0
    header, row, summary = capsys.readouterr().out.splitlines()
    assert header.split() == ["gpu", "problem", "tile", "parts", "us", "model_us"]
    cells = ["NVIDIA H200", "m=9 n=8 k=7 float16", "64x64x64 2x2 3", "1", "5.0", "6.0"]
    assert re.split(r" {2,}", row) == cells
    about = "2 kernels, 2.0 kB of at most 4.0 GB, 2 of other versions, compiled 20"
    assert summary.startswith(f"1 choices; {about}")
    assert main(["cache"]) == 0
    first, _, usage, *_ = capsys.readouterr().out.splitlines()
    assert first.startswith(f"{kept}: {about}")
    assert usage.startswith("Usage: layoutconv cache")
    assert main(["cache", "list", "--json"]) == 0
    found = told(capsys)
    assert [kernel["bytes"] for kernel in found["kernels"]] == [1000, 1000]
    assert found["choices"][0]["us"] == 5.0


def test_cache_list_says_what_kernels_are(folder: Path, capsys: Any) -> None:
    class Object:
        def export_to_c(self, path: str, function_name: str) -> None:
            Path(path).write_bytes(bytes(900))

    about = {"kernel": "implicit_gemm", "arch": "sm_90a", "what": "a conv, " + 200 * "x"}
    store._keep(Object(), folder / f"{'d' * 64}.o", about)
    assert main(["cache", "list"]) == 0
    header, row, summary = capsys.readouterr().out.splitlines()
    assert header.split() == ["kernel", "arch", "what"]
    assert re.fullmatch(r"implicit_gemm  sm_90a  a conv, x+\.\.\.", row)
    assert summary.startswith("0 choices; 1 kernels, ")
    assert main(["cache", "list", "--json"]) == 0
    [kernel] = told(capsys)["kernels"]
    assert kernel["what"] == about["what"]


@pytest.mark.parametrize(
    ("options", "left"),
    [
        ([], {"notes.o", "tmpabc.o"}),
        (["--only", "tuned"], {"notes.o", "tmpabc.o", "a" * 64 + ".o", "b" * 64 + ".o"}),
        (["--only", "kernels"], {"notes.o", "tmpabc.o", "c" * 64 + ".json"}),
    ],
)
def test_cache_clear_deletes_what_is_ours(
    kept: Path, capsys: pytest.CaptureFixture[str], options: list[str], left: set[str]
) -> None:
    assert main(["cache", "clear", *options]) == 0
    assert {path.name for path in kept.rglob("*") if path.is_file()} == left
    assert (kept / "tuned").exists() is (options == ["--only", "kernels"])
    kernels, tuned = (
        0 if options == ["--only", kind] else n for kind, n in (("tuned", 2), ("kernels", 1))
    )
    assert f"deleted {kernels} kernels and {tuned} choices" in capsys.readouterr().out
    assert main(["cache", "clear", *options]) == 0
    assert "deleted 0 kernels and 0 choices, 0 B" in capsys.readouterr().out


def test_cache_commands_where_there_is_no_cache(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder.rmdir()
    for command in (["cache", "list"], ["cache", "clear"], ["info"]):
        assert main(command) == 0
    assert not folder.exists()
    assert capsys.readouterr().err == ""


@pytest.fixture
def of_96_rows(gpu: Gpu, clock: Clock) -> Clock:
    """A GPU on which tiles of 96 rows are the fastest."""
    gpu.says(is_available=True, current_device=-1)
    gpu.like(MACHINE)
    clock.measures(lambda *of: lambda plan: 4.0 if plan.tile.m == 96 else 8.0)
    return clock


def test_tune_measures_and_remembers(of_96_rows: Clock, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["tune", "--conv", "2,16,16,64", "--filter", "64,3,3", "--filter", "128,1,1"]
    assert main([*command, "--dtype", "float16", "--dtype", "tf32"]) == 0
    out, err = capsys.readouterr()
    header, *rows = out.splitlines()
    assert header.split()[:5] == ["input", "filter", "pass", "dtype", "tile"]
    assert len(rows) == 2 * 2 * 3
    assert all(
        re.search(r" 96x128x\d+ 2x2 3( /\d)? +\d+ +4\.0 +8\.0 +2\.00x$", row) for row in rows
    )
    assert err == ""
    assert main(["cache", "list", "--json"]) == 0
    assert len(told(capsys)["choices"]) == 2 * 2 * 3
    assert main([*command, "--pass", "wgrad", "--json"]) == 0
    [first, second] = told(capsys)
    assert (first["filter"], second["filter"], first["pass"]) == ("64,3,3", "128,1,1", "wgrad")


ZOO_LAYER = {
    "id": 0, "kind": "conv", "N": [2, 1], "C": 64, "K": 64, "in": [16, 16], "taps": [3, 3],
    "stride": [1, 1], "padding": [1, 1], "dilation": [1, 1], "groups": 1,
    "output_padding": [0, 0], "bias": True, "out": [16, 16], "core": True,
    "uses": [["a", 2, 1, 3, 10.0]],
}  # fmt: skip


def test_tune_says_where_tiles_are_best(
    of_96_rows: Clock, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, out = tmp_path / "zoo.json", tmp_path / "rates.json"
    transposed = {**ZOO_LAYER, "id": 1, "kind": "transposed", "K": 32, "uses": [["a", 2, 1, 1, 5]]}
    depthwise = {**ZOO_LAYER, "id": 2, "groups": 64}
    layers = [ZOO_LAYER, transposed, depthwise]
    models = {"a": {"input": [3, 32, 32]}}
    file.write_text(json.dumps({"models": models, "layers": layers}))
    command = ["tune", "--zoo", str(file), "--out", str(out), "--pass", "fprop", "--pass", "wgrad"]
    assert main(command) == 0
    title, header, first, *_ = capsys.readouterr().out.splitlines()
    assert title.startswith("float16: tiles, those that are within 2% of the best")
    assert header.split()[0] == "tile"
    assert re.search(r"^96x128, 2x2 warps, multistage +4 +100% +100% +0.00", first)
    found = json.loads(out.read_text())
    assert {trial["pass"] for trial in found["trials"]} == {"fprop", "dgrad", "wgrad"}
    assert {trial["us"] for trial in found["trials"]} == {4.0, 8.0}
    assert found["tiles"]["float16"][0]["best"] == 1.0
    assert Machine(**found["machine"]) == MACHINE  # what the rates are a share of
    assert main(["cache", "list", "--json"]) == 0
    assert told(capsys)["choices"] == []  # the model is to be measured, not these
    assert main([*command, "--minutes", "0"]) == 0
    assert "0 of 4 races; the time is up" in capsys.readouterr().out


def test_tune_adds_to_a_table(of_96_rows: Clock, tmp_path: Path) -> None:
    table = tmp_path / "table.json"
    command = ["tune", "--conv", "2,16,16,64", "--filter", "64,3,3", "--table", str(table)]
    assert main([*command, "--pass", "fprop"]) == 0
    assert main([*command, "--pass", "wgrad", "--json"]) == 0
    [own] = json.loads(table.read_text()).values()
    assert [choice["tile"]["mma"][0] for choice in own.values()] == [96, 96]


def test_a_table_that_cannot_be_kept_is_refused_before_anything_is_measured(
    of_96_rows: Clock, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    wrong = tmp_path / "wrong.json"
    for text in ("no json", "[1, 2]"):
        wrong.write_text(text)
        for path in (wrong, tmp_path / "no folder" / "table.json"):
            command = ["tune", "--conv", "2,16,16,64", "--filter", "64,3,3", "--table", str(path)]
            assert main(command) == 2
            assert "--table" in capsys.readouterr().err
        assert wrong.read_text() == text
    assert list(measured_choices.kept()) == []


def test_tune_takes_rows_of_the_benchmark(
    of_96_rows: Clock, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["tune", "--rows", "^vae (fprop|dgrad) (fp16|tf32)|depthwise_3d", "--json"]) == 0
    rows = {(row["input"], row["pass"], row["dtype"]) for row in told(capsys)}
    shape = "1,16,64,64,256"
    assert rows == {(shape, p, d) for p in ("fprop", "dgrad") for d in ("float16", "tf32")}


def test_ctrl_c_in_a_tune_keeps_what_was_found(
    of_96_rows: Clock, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupt(plan: gpu_plan.Plan) -> float:
        if len(list(measured_choices.kept())) == 1:
            raise KeyboardInterrupt
        return 1.0

    of_96_rows.measures(lambda *of: interrupt)
    assert main(["tune", "--conv", "2,16,16,64", "--filter", "64,3,3"]) == 130
    assert len(list(measured_choices.kept())) == 1
    assert "Traceback" not in capsys.readouterr().err


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
@pytest.mark.parametrize("name", ["dense", "sparse", "maps", "network", "tune"])
def test_without_a_gpu_there_is_a_sentence(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    tune = ["tune", "--conv", "2,8,8,16", "--filter", "16,3,3"]
    assert main(tune if name == "tune" else ["bench", name]) == 2
    error = capsys.readouterr().err
    assert re.fullmatch(r"layoutconv: error: .*torch sees no.*\n", error)


@pytest.mark.parametrize(
    ("command", "script", "arguments"),
    [
        (["dense", "--quick", "--compile", "8"], "bench_dense", ["--quick", "--compile", "8"]),
        (["sparse", "--repeats", "3"], "bench_sparse", ["--repeats", "3"]),
        (["maps"], "bench_sparse", ["--rows", "^map .*(?:)"]),
        (["maps", "--rows", "a|b"], "bench_sparse", ["--rows", "^map .*(?:a|b)"]),
        (["network", "--workloads", "w"], "bench_network", ["--workloads", "w"]),
        (["algebra", "--rows", "x", "--plot", "f.svg"], "bench_algebra",
         ["--plot", "f.svg", "--rows", "x"]),
    ],
)  # fmt: skip
def test_bench_calls_the_script(
    command: list[str], script: str, arguments: list[str], monkeypatch: Any, gpu: Gpu, capsys: Any
) -> None:
    """Its options are the script's, JSON alone goes to standard output, its status is ours."""
    given: list[list[str]] = []

    def main_of_script(argv: list[str]) -> int:
        given.append(argv)
        print("a table")
        if "--json" in argv:
            Path(argv[argv.index("--json") + 1]).write_text('{"rows": []}\n')
        return 1

    loaded: list[str] = []
    with pytest.raises(SystemExit):
        bench.load(script).main(["--help"])
    known = re.findall(r"--\w+", capsys.readouterr().out)
    assert set(re.findall(r"--\w+", " ".join(arguments))) <= set(known)

    def load(name: str) -> Any:
        loaded.append(name)
        return SimpleNamespace(main=main_of_script)

    gpu.says(is_available=True)
    monkeypatch.setattr(bench, "load", load)
    assert main(["bench", *command]) == 1
    assert loaded == [script]
    assert given == [arguments]
    assert capsys.readouterr().out == "a table\n"
    assert main(["bench", *command, "--json"]) == 1
    out, err = capsys.readouterr()
    assert json.loads(out) == {"rows": []}
    assert err == "a table\n"


def test_bench_algebra_runs_anywhere(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: Any
) -> None:
    algebra = bench.load("bench_algebra")
    monkeypatch.setattr(algebra, "tracing", lambda rounds: {})  # seconds, of the CuTe DSL
    picture = tmp_path / "algebra.svg"
    command = ["bench", "algebra", "--quick", "--rows", "construct|NumPy", "--plot", str(picture)]
    assert main([*command, "--json"]) == 0
    found = told(capsys)
    assert set(found["microseconds"]) == {
        "construct ((4,8),(2,16))", "offsets of 1,024 coordinates, NumPy array"
    }  # fmt: skip
    for name, times in found["microseconds"].items():
        peers = [t for label, t in times.items() if label != "layoutconv"]
        ratio = min(peers) / times["layoutconv"] if peers else None
        assert found["ratio"][name] == ratio
    assert b"<svg" in picture.read_bytes()
