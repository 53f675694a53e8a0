"""``python -m layoutconv draw``: text, or a picture with ``-o``; sentences for mistakes."""

from __future__ import annotations

from pathlib import Path

import pytest

from layoutconv import Layout, mma_atom, parse
from layoutconv.cli import main
from layoutconv.conv import ConvProblem, fprop_view
from layoutconv.drawing import Figure, to_svg, to_text
from layoutconv.drawing.api import draw
from layoutconv.drawing.named import atom

from .conftest import Refused

NESTED = "((2,2),(4,2)):((1,8),(2,16))"
C = "((4,8),(2,2)):((32,1),(16,8))"


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ([NESTED], draw(parse(NESTED))),
        (["S<3,0,3> o 0 o (8,8):(8,1)"], draw(parse("S<3,0,3> o 0 o (8,8):(8,1)"))),
        (["(400,3)", "--limit", "8"], draw(Layout((400, 3)), limit=8)),
        ([C, "--tv", "16,8"], draw(parse(C), tv=(16, 8))),
        (
            [C, "--tv", "(16,8):(8,1)", "--element-bits", "16"],
            draw(parse(C), tv=Layout((16, 8), (8, 1)), element_bits=16),
        ),
        (["--atom", "m16n8k16.f16"], draw(mma_atom("m16n8k16.f16"))),
        (["--atom", "SM80_16x8x16_F32F16F16F32_TN"], draw(mma_atom("m16n8k16.f16"))),
        (
            ["--view", "fprop:5x5,3x3,stride=2,padding=1,channels=2", "--row", "4"],
            draw(fprop_view(ConvProblem((1, 5, 5, 2), (1, 3, 3), 2, 1)), row=4),
        ),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_it_prints_and_it_writes(
    arguments: list[str], expected: Figure, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert main(["draw", *arguments]) == 0
    assert capsys.readouterr().out == to_text(expected) + "\n"
    path = tmp_path / "picture.svg"
    assert main(["draw", *arguments, "-o", str(path)]) == 0
    assert path.read_text(encoding="utf-8") == to_svg(expected)
    assert capsys.readouterr().out == ""


def test_a_gallery_of_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["draw", "--gallery", str(tmp_path / "steps")]) == 0
    assert capsys.readouterr().out == f"{tmp_path / 'steps' / 'index.html'}\n"
    assert (tmp_path / "steps" / "index.html").is_file()
    assert main(["draw", "(4,2)", "--gallery", str(tmp_path)]) == 2
    assert "--gallery cannot be combined with LAYOUT." in capsys.readouterr().err


def test_plain_characters_and_colours_where_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    main(["draw", "(2,2)", "--ascii"])
    assert capsys.readouterr().out.isascii()
    main(["draw", "(2,2)", "--colour"])
    assert "\x1b[30;48;2;" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["(4,2):(1,4) ]"], "expected the end, found ']'\n(4,2):(1,4) ]\n            ^"),
        (["(4,2):(1)"], "(4,2)"),
        (["(4,2)", "--row", "1"], "argument `row`: expected None for a Layout, got 1"),
        (["(4,2)", "--limit", "1"], "argument `limit`: expected an int >= 4, got 1"),
        (["(4,2)", "-o", "picture.bmp"], "ends in .svg"),
        (["(4,2)", "-o", "no/such/folder/picture.svg"], "No such file or directory"),
        (["--atom", "m1n1k1"], "argument `atom`: expected a name such as m16n8k16.f16"),
        (["--view", "dgrad:5x5,3x3"], "argument `--view`: expected fprop:INPUT,FILTER"),
        (["--view", "fprop:5x5,3xx"], "argument `--view`: expected a number in place of ''"),
        (["--view", "fprop:2x2,3x3"], "argument `filter`: expected a filter that fits"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_mistakes_end_in_a_sentence(arguments: list[str], message: str, refused: Refused) -> None:
    error = refused(arguments)
    assert error.startswith("layoutconv: error: ")
    assert message in error


def test_one_thing_at_a_time(refused: Refused) -> None:
    for arguments, message in (
        ([], "Expected one of LAYOUT, --atom and --view."),
        (["(4,2)", "--atom", "m16n8k16.f16"], "Expected one of LAYOUT, --atom and --view."),
        (
            ["(4,2)", "--tv", "4:1"],
            "argument `tv`: expected the extents (M, N) of the tile, or its",
        ),
        (["(4,2)", "--tv", "a"], "expected two extents such as 16,8, got 'a'"),
        (["(4,2)", "--tv", "1,2,3"], "expected two extents such as 16,8, got '1,2,3'"),
    ):
        error = refused(arguments)
        assert error.startswith("layoutconv: error: ")
        assert message in error
        assert error.count("\n") == 1


@pytest.mark.parametrize(
    ("cute", "ptx"),
    [
        ("SM80_16x8x8_F16F16F16F16_TN", "m16n8k8.f16"),
        ("SM80_16x8x16_F32BF16BF16F32_TN", "m16n8k16.bf16"),
        ("SM80_16x8x4_F32TF32TF32F32_TN", "m16n8k4.tf32"),
        ("SM80_16x8x32_S32S8S8S32_TN", "m16n8k32.s8"),
        ("SM80_8x8x4_F64F64F64F64_TN", "m8n8k4.f64"),
        ("SM89_16x8x32_F32E4M3E4M3F32_TN", "m16n8k32.e4m3"),
        ("SM75_U32x1_LDSM_N", "ldmatrix.x1"),
        ("SM75_U32x4_LDSM_N", "ldmatrix.x4"),
        ("SM75_U16x2_LDSM_T", "ldmatrix.x1.trans"),
        ("SM90_64x32x8_F32TF32TF32_SS_TN", "m64n32k8"),
    ],
)
def test_names_of_cute(cute: str, ptx: str) -> None:
    assert atom(cute) == atom(ptx)
    assert atom(ptx).name == ptx
