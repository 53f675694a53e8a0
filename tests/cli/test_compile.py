"""``layoutconv compile``: what it chooses, compiles, writes and refuses, with no GPU."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import torch

import layoutconv as lc
from layoutconv.cli import main
from layoutconv.conv import ConvProblem, fprop_view
from layoutconv.errors import ArgumentError
from layoutconv.gpu.explain import explain
from layoutconv.gpu.packing_choice import multiplied_on, packed_fprop
from layoutconv.gpu.select import choose_kernel
from layoutconv.kernels.compile.build import build
from layoutconv.kernels.compile.cubin import read_cubin
from layoutconv.planning.cost_model import ranked
from layoutconv.planning.machine import MACHINES
from layoutconv.view.epilogue import Epilogue

VIEW = fprop_view(ConvProblem((8, 64, 64, 64), (64, 3, 3), padding=1))
SMALL = ["--conv", "1,9,9,16", "--filter", "24,3,3", "--arch", "sm_80"]


def test_json_has_the_facts_of_the_kernel(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["compile", *SMALL, "--padding", "1", "--json", "--sass-stats"]) == 0
    (found,) = json.loads(capsys.readouterr().out)
    assert found["gemm"] == {"m": 81, "n": 24, "k": 144, "groups": 1}
    view = fprop_view(ConvProblem((1, 9, 9, 16), (24, 3, 3), padding=1))
    choice = choose_kernel(view, torch.float16, MACHINES["sm_80"])
    assert found["tile"] == str(choice.spec.tile)
    (kernel,) = read_cubin(build(choice.view, choice.spec, dump=str(tmp_path)).__cubin__).values()
    assert (found["registers"], found["sass"]) == (kernel.registers, dict(kernel.opcodes))
    assert found["sass"]["HMMA"] > 0
    assert found["candidates"][0]["tile"] == found["tile"]
    assert found["loads"] == ["cp.async", "cp.async"]


@pytest.mark.parametrize(
    ("options", "loads"),
    [
        ("--conv 8,14,14,96 --filter 64,3,3 --pass wgrad", "A by TMA im2col, B by TMA im2col"),
        ("--conv 32,56,56,40 --filter 128,3,3 --pass wgrad", "A by TMA im2col, B by cp.async"),
        ("--conv 64,14,14,256 --filter 256,3,3 --groups 32", "A by cp.async, B by cp.async"),
        ("--conv 8,14,14,3 --filter 63,3,3 --arch sm_80", "A by loads of threads, B by loads of"),
    ],
)
def test_it_says_what_loads_the_operands(
    options: str, loads: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["compile", *options.split()]) == 0
    found = re.search(r"^loads +(A by .*)$", capsys.readouterr().out, re.M)
    assert found is not None
    assert found[1].startswith(loads)


def test_a_timeline_says_that_it_is_an_estimate(capsys: pytest.CaptureFixture[str]) -> None:
    """A line for each role, a row for each k-tile, and the same numbers as JSON."""
    assert main(["compile", *SMALL, "--padding", "1", "--k-tiles"]) == 0
    printed = capsys.readouterr().out
    assert "estimated from the cost model's rates; nothing was run" in printed
    lines = dict(re.findall(r"^(loads|products|epilogue) +([.LME]+)$", printed, re.M))
    assert {name: set(line) for name, line in lines.items()} == {
        "loads": set(".L"), "products": set(".M"), "epilogue": set(".E")
    }  # fmt: skip
    assert main(["compile", *SMALL, "--padding", "1", "--json"]) == 0
    (found,) = json.loads(capsys.readouterr().out)
    time = found["timeline"]
    assert time["how"].startswith("estimated")
    assert len(time["k_tiles"]) == time["k_tiles_of_a_sum"] == 5
    rows = re.findall(r"^0 +(\d) +([\d.]+) +[\d.]+ +([\d.]+)", printed, re.M)
    want = [(str(t["k_tile"]), f"{t['load']:.2f}", f"{t['multiply']:.2f}") for t in time["k_tiles"]]
    assert rows == want


@pytest.mark.parametrize("direction", ["fprop", "wgrad"])
def test_no_images_have_a_kernel_and_no_timeline(
    direction: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """No rows, and sums of nothing: the kernel is that of any number of images."""
    empty = ["--conv", "0,9,9,16", *SMALL[2:], "--pass", direction]
    assert main(["compile", *empty, "--json"]) == 0
    (found,) = json.loads(capsys.readouterr().out)
    assert 0 in found["gemm"].values()
    assert found["timeline"] is None


def test_the_kernel_is_that_of_a_call(capsys: pytest.CaptureFixture[str]) -> None:
    """A stem of three channels has them packed first; threads sum those of a thin 1x1 layer."""
    stem = ["--conv", "64,224,224,3", "--filter", "64,7,7", "--stride", "2", "--padding", "3"]
    assert main(["compile", *stem, "--json"]) == 0
    (found,) = json.loads(capsys.readouterr().out)
    problem = ConvProblem((64, 224, 224, 3), (64, 7, 7), stride=2, padding=3)
    fp16 = multiplied_on(torch.float16, MACHINES["sm_90a"])
    packed = packed_fprop(problem, [fprop_view(problem)], fp16)
    assert packed is not None
    assert found["gemm"]["k"] == packed.views[0].k != fprop_view(problem).k
    assert main(["compile", "--conv", "2,128,128,128,1", "--filter", "32,1,1,1"]) == 2
    assert "threads sum these, and have no tiles" in capsys.readouterr().err


def test_every_view_of_a_pass_has_its_kernel(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A strided gradient has one for each residue; PTX is written for all of them."""
    ptx = tmp_path / "dgrad.ptx"
    large = ["--conv", "64,64,64,64", "--filter", "64,3,3", "--padding", "1", "--arch", "sm_80"]
    status = main(["compile", *large, "--stride", "2", "--pass", "dgrad", "--ptx", str(ptx)])
    assert status == 0
    assert capsys.readouterr().out.count("GEMM") == 4
    written = sorted(tmp_path.glob("*.ptx"))
    assert len(written) == 4
    assert all(".target sm_80" in path.read_text() for path in written)


def test_a_view_of_a_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    script = tmp_path / "mine.py"
    script.write_text(
        "import layoutconv as lc\n"
        "L = lc.Layout\n"
        "product = lc.GemmView(L((300, 256), (256, 1)), L((192, 256), (256, 1)), L((300, 192)))\n"
        "def made():\n    return product\n"
        "number = 3\n"
    )
    for name in ("product", "made"):
        assert main(["compile", f"{script}:{name}", "--arch", "sm_80"]) == 0
        assert "m = 300, n = 192, k = 256" in capsys.readouterr().out
    monkeypatch.chdir(tmp_path)
    assert main(["compile", "mine.py:made", "--arch", "sm_80", "--ptx", "--sass-stats"]) == 0
    assert "instructions" in capsys.readouterr().out
    assert ".target sm_80" in (tmp_path / "kernel.ptx").read_text()
    refused = {
        f"{script}:number": "Expected a GemmView or a function that returns one, got int",
        f"{script}:absent": "mine.py has no absent.",
        "no_such_module:view": "no_such_module cannot be imported",
        "nothing": "Expected FILE.py:NAME or MODULE:NAME, got 'nothing'",
        f"{tmp_path}/none.py:view": "No such file",
        f"{tmp_path}/typo.py:view": "typo.py cannot be imported: ",
    }
    (tmp_path / "typo.py").write_text("def (:\n")
    for target, message in refused.items():
        assert main(["compile", target]) == 2
        assert message in capsys.readouterr().err
    assert main(["compile"]) == 2
    assert "Expected VIEW, or --conv and --filter" in capsys.readouterr().err


def test_an_epilogue_of_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A step, or an epilogue of several: each has more instructions than the bare kernel."""
    script = tmp_path / "mine.py"
    script.write_text(
        "import torch, layoutconv as lc\n"
        "step = lc.Pointwise(lambda x, t: x * x - t, columns={'t': torch.zeros(24)})\n"
        "both = lc.Epilogue((lc.Scale(torch.ones(24)), step))\n"
        "number = 3\n"
    )
    counts = []
    for more in ([], ["--epilogue", f"{script}:step"], ["--epilogue", f"{script}:both"]):
        assert main(["compile", *SMALL, "--json", *more]) == 0
        counts.append(json.loads(capsys.readouterr().out)[0]["instructions"])
    assert counts == sorted(set(counts))
    assert main(["compile", *SMALL, "--epilogue", f"{script}:number"]) == 2
    assert "argument `epilogue`: expected steps" in capsys.readouterr().err


@pytest.mark.parametrize("arch", MACHINES)
def test_candidates_are_ranked_and_refused_with_reasons(arch: str) -> None:
    found = explain(VIEW, torch.float16, arch, most=12)
    pairs = [(c.tile, c.splits) for c in found.candidates]
    assert pairs == [pair for pair, _ in zip(ranked(found.problem, found.machine), range(12))]  # noqa: B905
    legal = [c for c in found.candidates if not c.refused]
    assert legal[0].tile == found.spec.tile
    assert not found.measured


def test_an_epilogue_leaves_tiles_out() -> None:
    """A tile that finishes rows in registers cannot ask for their numbers."""
    step = lc.Pointwise(lambda x, row: x + row)
    found = explain(VIEW, torch.float16, "sm_90a", epilogue=Epilogue((step,)), most=64)
    refused = {c.refused for c in found.candidates if c.refused}
    assert any("ask for no row" in why for why in refused)
    assert found.spec.tile.halo_taps == 1


def test_an_architecture_that_the_model_does_not_know() -> None:
    with pytest.raises(ArgumentError, match=r"`arch`: expected one of sm_80, .* got 'sm_70'"):
        explain(VIEW, torch.float16, "sm_70")
