"""Example 59: what it prints, and that its check can fail."""

from __future__ import annotations

import re

import pytest
import torch

IMAGES = ["--n", "5", "--i", "2"]


@pytest.fixture
def main(example):
    here = torch.device("cpu"), "the CPU"
    return example("gather_scatter_conv", _device=lambda: here).main


@pytest.mark.parametrize("dtype", ["tf32", "fp16", "bf16"])
def test_the_original_workload(main, capsys, dtype):
    assert main([*IMAGES, "--dtype", dtype]) == 0
    told = capsys.readouterr().out
    assert "activation (N,D,H,W,C):(D*H*W*C,H*W*C,W*C,C,1)" in told
    assert "N=5 D=6 H=4 W=4 Z=4 P=2 Q=2" in told
    assert "C=64 K=128 T=3 R=3 S=3" in told
    # The index buffers are in the layouts of A and D of the second run.
    assert len(re.findall(r"^[AD]: .*gather\*1@0,1@1\) o", told, re.M)) == 2
    flop = 2 * (5 * 4 * 2 * 2) * 128 * (64 * 27)
    assert f"Work: {flop / 1e12:.6g} TFLOP" in told
    for line in re.findall(r"^(?:dense|gather/scatter) .*", told, re.M):
        milliseconds, rate = map(float, re.search(r"([\d.]+) ms +([\d.]+) TFLOP/s", line).groups())
        assert rate == pytest.approx(flop / milliseconds / 1e9, rel=0.01, abs=1e-4)
    assert len(re.findall(r"5 of 5 images checked: .* ok$", told, re.M)) == 2


def test_the_limits_of_the_original_are_gone(main, capsys):
    sizes = ["--dhw", "5", "7", "3", "--taps", "1", "3", "2", "--padding", "2"]
    channels = ["--channels", "5", "--filters", "11"]
    assert main(["--n", "3", "--i", "1", *sizes, *channels]) == 0
    told = capsys.readouterr().out
    assert "N=3 D=5 H=7 W=3 Z=9 P=9 Q=6" in told
    assert len(re.findall(r"3 of 3 images checked: .* ok$", told, re.M)) == 2


def test_a_wrong_result_is_found(example, main, capsys, spoiled):
    def wrong(out):
        out.view(-1)[-1] = torch.nan

    spoiled(wrong)
    assert main(IMAGES) == 1
    assert len(re.findall("FAILED", capsys.readouterr().out)) == 2
    assert main([*IMAGES, "--no-check"]) == 0
    assert "checked" not in capsys.readouterr().out


def test_sizes_that_make_no_convolution_are_one_line(main, capsys):
    assert main([*IMAGES, "--dhw", "2", "4", "4"]) == 2
    error = capsys.readouterr().err
    assert "argument `filter`: expected a filter that fits the padded input, 2 cells" in error
    assert error.count("\n") == 1
