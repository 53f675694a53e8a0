"""Examples of other systems: what they print, and that their checks can fail."""

from __future__ import annotations

import re

import pytest

import layoutconv

NAMES = ["ck_tile_windows", "gather_gemm_scatter", "gett", "memory_layouts", "wmma_conv3x3"]


@pytest.fixture
def wrong(spoiled):
    """An executor whose last number is off by a little."""

    def change(d):
        d[tuple((d == d).nonzero()[-1])] += 0.5

    spoiled(change)


@pytest.mark.parametrize("name", NAMES)
def test_it_checks_itself(example, capsys, name):
    assert example(name).main([]) == 0
    told = capsys.readouterr().out
    assert re.search(r"\bok$", told, re.M)
    assert "FAILED" not in told


@pytest.mark.parametrize("name", NAMES)
def test_a_wrong_result_is_found(example, capsys, wrong, name):
    assert example(name).main([]) == 1
    assert "FAILED" in capsys.readouterr().out


def test_windows_are_counted(example, capsys):
    example("ck_tile_windows").main([])
    told = capsys.readouterr().out
    assert "windows  (4,4,3,3):(6,1,6,1)\n" in told
    assert "merged   ((4,4),(3,3)):((1,6),(1,6)), 16 x 9\n" in told
    # 16 windows of 9 taps in each of the three ways; the matrix repeats the image four times.
    assert len(re.findall(r"image +144 reads +0 writes of +36 elements", told)) == 3
    assert len(re.findall(r"matrix +144 reads +144 writes of 144 elements", told)) == 1
    assert len(re.findall(r"output +0 reads +16 writes of +16 elements", told)) == 3


def test_a_text_of_three_letters_is_a_matrix_product(example):
    import torch

    module = example("gett")
    a, b = torch.randn(4, 5), torch.randn(6, 5)
    view = module.gett_view("ik,jk->ij", a, b)
    assert (view.m, view.n, view.k, view.l) == (4, 6, 5, 1)
    torch.testing.assert_close(layoutconv.execute(view, a, b), a @ b.T)
    # Every letter is of the mode of the product that it belongs to.
    view = module.gett_view("abcl,lbdc->lda", torch.randn(2, 3, 5, 7), torch.randn(7, 3, 11, 5))
    assert (view.m, view.n, view.k, view.l) == (2, 11, 15, 7)


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("ik,jk", "two operands and a result"),
        ("ik->ik", "two operands and a result"),
        ("iik,jk->ij", "every letter once in a tensor, got iik"),
        ("ik,jk->i", "every letter in two tensors or three, got j"),
        ("ikx,jk->ij", "every letter in two tensors or three, got x"),
        ("kij,ij->k", "argument `a`: expected 3 modes, kij"),
        ("ik,ki->i", "argument `b`: expected 5 for mode k"),
    ],
)
def test_a_text_that_is_no_contraction_is_an_error(example, text, error):
    import torch

    with pytest.raises(layoutconv.errors.ArgumentError, match=error):
        example("gett").gett_view(text, torch.randn(4, 5), torch.randn(6, 5))


def test_rows_and_columns_that_are_gathered(example, capsys):
    example("gather_gemm_scatter").main([])
    told = capsys.readouterr().out
    assert "D: (rows,columns):(columns,1) o 0 o (M,N):(gather*1@0,gather*1@1) o 0 o" in told
    # 199 of 200 rows, as an entry of the index is -1; 64 columns; all 300 rows where no index is.
    written = re.findall(r"^(\d+) numbers written", told, re.M)
    assert written == ["31840", "12736", "19200", "12736"]


def test_measuring_wants_a_gpu(example, capsys, gpu):
    gpu.says(is_available=False)
    assert example("wmma_conv3x3").main(["--perf"]) == 2
    assert "--perf measures a GPU" in capsys.readouterr().err


def test_sums_of_fp16_are_exact_to_fp32(example, capsys):
    """Ours to a few units of fp32; torch's result is rounded to fp16, three digits less."""
    example("wmma_conv3x3").main(["--acc"])
    rows = re.findall(
        r"^[ \d]+ (\S+e\S+) +(\S+e\S+) +(\S+e\S+)  ok$", capsys.readouterr().out, re.M
    )
    assert len(rows) == 5
    for ours, of_torch, between in (map(float, row) for row in rows):
        assert ours < 1e-6
        assert 1e-4 < of_torch < 1e-3
        assert between == pytest.approx(of_torch, rel=0.1)


def test_the_memory_is_shown(example, capsys):
    example("memory_layouts").main([])
    shown = re.findall(r"^(\S.*)\n  A: (.*)\n", capsys.readouterr().out, re.M)
    expected = {
        "NHWC": "(2,10,12,128):(15360,1536,128,1)",
        "NCHW": "(2,10,12,128):(15360,12,1,120)",
        "NC/32HW32": "(2,10,12,32,4):(15360,384,32,1,3840)",
        "NC/64HW64": "(2,10,12,64,2):(15360,768,64,1,7680)",
        "channels of larger tensors": "(2,10,12,128):(46080,4608,384,1)",
        "every second channel": "(2,10,12,128):(30720,3072,256,2)",
        "images named by an index": "(6,10,12,128):(15360,1536,128,1) o "
        "(N,H,W,C):(gather*1@0,1@1,1@2,1@3)",
    }
    assert dict(shown) == expected


def test_what_is_beside_a_slice_is_left_alone(example, capsys, spoiled):
    def careless(out):
        if out._base is not None and out.stride(-2) > out.shape[-1]:
            out._base[0, 0, 0, 0] = 0.0

    spoiled(careless)
    assert example("memory_layouts").main([]) == 1
    assert capsys.readouterr().out.count("FAILED") == 1
