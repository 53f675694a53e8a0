"""The notebooks run from top to bottom, show what they promise, and are kept without outputs."""

from __future__ import annotations

import os
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "examples" / "notebooks"
NAMES = sorted(path.stem for path in FOLDER.glob("*.ipynb"))
PICTURES = {"algebra": 6, "convolutions": 3, "point_clouds": 2}  # that a reader sees


def read(name: str) -> nbformat.NotebookNode:
    return nbformat.read(FOLDER / f"{name}.ipynb", as_version=4)


def pictures(notebook: nbformat.NotebookNode) -> list[str]:
    """The SVGs and PNGs among the outputs of its cells."""
    return [
        kind
        for cell in notebook.cells
        for output in cell.get("outputs", ())
        for kind in output.get("data", ())
        if kind in ("image/svg+xml", "image/png")
    ]


def test_all_are_known() -> None:
    assert set(PICTURES) == set(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_it_is_kept_without_outputs(name: str) -> None:
    notebook = read(name)
    nbformat.validate(notebook)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert code
    assert [cell for cell in code if cell.outputs or cell.execution_count] == []


@pytest.mark.parametrize("name", NAMES)
def test_it_runs_and_shows_its_pictures(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A cell that raises, as an assertion of its own may, fails here with its traceback."""
    paths = [str(ROOT), os.environ.get("PYTHONPATH", "")]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, paths)))
    for variable in ("JUPYTER_RUNTIME_DIR", "IPYTHONDIR"):
        monkeypatch.setenv(variable, str(tmp_path / variable))
    notebook = read(name)
    resources = {"metadata": {"path": str(tmp_path)}}
    NotebookClient(notebook, timeout=120, kernel_name="python3", resources=resources).execute()
    assert len(pictures(notebook)) == PICTURES[name]
