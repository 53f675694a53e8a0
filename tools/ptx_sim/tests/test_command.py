"""The command: kernels described and run, faults and wrong arguments as exit codes."""

from __future__ import annotations

from pathlib import Path

import pytest

from ..__main__ import main
from .snippets import module

ADD = module(
    """
    .reg .b32 %t; .reg .b64 %x, %y, %at; .reg .f32 %f;
    mov.u32 %t, %tid.x; mul.wide.u32 %at, %t, 4;
    ld.param.u64 %x, [p0]; ld.param.u64 %y, [p1]; add.u64 %x, %x, %at; add.u64 %y, %y, %at;
    ld.global.f32 %f, [%x]; add.f32 %f, %f, %f; st.global.f32 [%y], %f;
    """,
    ".param .u64 p0, .param .u64 p1",
)


@pytest.fixture
def kernel(tmp_path: Path) -> str:
    path = tmp_path / "add.ptx"
    path.write_text(ADD)
    return str(path)


def test_it_describes_a_kernel(kernel: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([kernel]) == 0
    said = capsys.readouterr().out
    assert "parameter  p1: u64, 8 bytes at 8" in said
    assert "1  st.global.f32" in said


def test_it_runs_a_kernel(kernel: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([kernel, "float32[32]", "out:float32[32]"]) == 0
    said = capsys.readouterr().out
    assert "1  ld.global.f32" in said
    values = [float(v) for v in said.rpartition("[")[2].strip("]\n").replace(".", "").split()]
    assert len(values) == 32
    assert all(value % 2 == 0 for value in values)


def test_a_fault_has_its_name(kernel: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([kernel, "float32[31]", "out:float32[32]"]) == 1
    assert "OutOfBounds" in capsys.readouterr().err


@pytest.mark.parametrize("wrong", ["float32", "float32[x]", "12", "int33:1"])
def test_wrong_arguments_are_named(
    kernel: str, wrong: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([kernel, "float32[32]", wrong]) == 2
    assert "ptx_sim: error:" in capsys.readouterr().err
