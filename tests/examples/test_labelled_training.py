"""Training on a published folder: it learns, goes on where it was stopped, in several processes."""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path

import pytest
import torch

from layoutconv.sparse.coords.street import street

from ..warm_process import run_python
from .conftest import EXAMPLES

SMALL = ["--voxel-size", "0.8", "--width", "4", "--stages", "1", "--rate", "0.05", "--batch", "1",
         "--device", "cpu"]  # fmt: skip


@pytest.fixture(scope="module")
def scans(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two sequences of streets as SemanticKITTI numbers them: the ground, and what stands on it."""
    root = tmp_path_factory.mktemp("kitti")
    for seed, name in enumerate(["00/000000", "00/000001", "01/000000", "08/000000"]):
        points = street(seed, beams=20, azimuths=120)[:, :4].astype("<f4")
        low = torch.from_numpy(points[:, 2]) < float(points[:, 2].min()) + 0.4
        labels = torch.where(low, 40, 50)
        labels[::50] = 0
        sequence, sweep = name.split("/")
        for part, content in (("velodyne/{}.bin", points), ("labels/{}.label", labels.numpy())):
            path = root / "sequences" / sequence / part.format(sweep)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content.astype("<f4" if "bin" in part else "<u4").tobytes())
    return root


@pytest.fixture
def labelled(example):
    return example("train_labelled")


def test_it_learns_and_goes_on_as_if_nobody_had_stopped_it(labelled, scans, capsys, tmp_path):
    """Bit by bit: orders, angles and rates follow from the epoch, the rest is in the checkpoint."""
    pytest.importorskip("plotly")
    whole, part, page = (tmp_path / name for name in ("whole.pt", "part.pt", "scan.html"))
    run = [str(scans), *SMALL, "--epochs", "6"]
    tested = labelled.confusion

    def kept(run, found):
        """As a run that is stopped behind its fourth epoch leaves it."""
        if run.epoch == 4:
            shutil.copy(whole, part)
        return tested(run, found)

    labelled.confusion = kept
    assert labelled.main([*run, "--checkpoint", str(whole), "--page", str(page)]) == 0
    told = capsys.readouterr().out
    assert "'train': 3 scans of 19 classes" in told
    assert len(re.findall(r"^  epoch", told, re.M)) == 6
    assert told.rstrip().endswith("ok")
    ious = re.findall(r"^ +(road|building) +([\d.]+)%$", told, re.M)
    assert [name for name, _ in ious] == ["road", "building"]
    assert all(float(iou) > 60 for _, iou in ious)
    assert told.count("not there") == 17
    assert all(name in page.read_text("utf-8") for name in ("road", "building", "prediction"))

    labelled.confusion = tested
    assert labelled.main([*run, "--resume", str(part)]) == 0
    assert "from epoch 4" in capsys.readouterr().out
    found, want = (torch.load(path, weights_only=True) for path in (part, whole))
    assert found["losses"] == want["losses"]
    assert all(torch.equal(found["net"][name], value) for name, value in want["net"].items())


def test_what_makes_no_sense_is_one_line(labelled, scans, capsys, tmp_path):
    checkpoint = tmp_path / "a.pt"
    assert (
        labelled.main([str(scans), *SMALL, "--epochs", "1", "--checkpoint", str(checkpoint)]) == 0
    )
    wider = [str(scans), *SMALL, "--width", "8", "--resume", str(checkpoint)]
    for arguments, message in (
        (wider, "expected a checkpoint of a network with these classes, --width and --stages"),
        ([str(scans), "--resume", str(tmp_path / "none.pt")], "none.pt"),
        ([str(tmp_path)], "a folder with sequences (SemanticKITTI)"),
    ):
        capsys.readouterr()
        assert labelled.main(arguments) == 2
        error = capsys.readouterr().err
        assert message in error
        assert error.count("\n") == 1


def test_a_damaged_checkpoint_is_one_line(labelled, scans, capsys, tmp_path):
    """Torch, the interpreter and the program said something else of each, mostly a traceback."""
    whole, bad = tmp_path / "whole.pt", tmp_path / "bad.pt"
    run = [str(scans), *SMALL]
    assert labelled.main([*run, "--epochs", "1", "--checkpoint", str(whole)]) == 0
    content, kept = whole.read_bytes(), torch.load(whole, weights_only=True)
    for damaged in (b"", content[: len(content) // 2], b"hello world" * 100):
        bad.write_bytes(damaged)
        capsys.readouterr()
        assert labelled.main([*run, "--epochs", "2", "--resume", str(bad)]) == 2
        said = capsys.readouterr().err
        assert f"{bad}: expected a whole checkpoint, got " in said
        assert said.count("\n") == 1
    entries = "expected a checkpoint with net, optimizer, scaler, epoch, losses"
    other = torch.optim.SGD([torch.zeros(3)], lr=0.1).state_dict()
    for kind, message in (
        (kept["net"], entries),
        ([1], entries),
        ({**kept, "epoch": "1"}, entries),
        ({**kept, "losses": None}, entries),
        ({**kept, "epoch": -3}, "expected a loss of each of its epochs"),
        ({**kept, "optimizer": other}, "expected a checkpoint of a network with these classes"),
    ):
        torch.save(kind, bad)
        capsys.readouterr()
        assert labelled.main([*run, "--epochs", "2", "--resume", str(bad)]) == 2
        assert f"{bad}: {message}" in capsys.readouterr().err


def test_options_that_would_fail_after_the_first_epoch(labelled, scans, capsys, tmp_path):
    wrong = {
        "--epochs": "0", "--batch": "-1", "--rate": "nan", "--voxel-size": "inf", "--stages": "0",
        "--checkpoint": str(tmp_path / "none" / "a.pt"), "--page": str(tmp_path),
    }  # fmt: skip
    for option, value in wrong.items():
        with pytest.raises(SystemExit, match="2"):
            labelled.main([str(scans), option, value])
        assert re.search(rf"argument {option}: expected .*, got '{value}'", capsys.readouterr().err)


def test_scans_without_a_labelled_point(labelled, scans, capsys, tmp_path):
    folder = shutil.copytree(scans, tmp_path / "unlabelled")
    for path in folder.rglob("*.label"):
        path.write_bytes(bytes(path.stat().st_size))
    assert labelled.main([str(folder), *SMALL]) == 2
    assert "no point of the first scans is labelled as a class" in capsys.readouterr().err


def test_two_processes_train_in_mixed_precision(scans, tmp_path):
    command = [
        "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2",
        str(EXAMPLES / "train_labelled.py"), str(scans), *SMALL, "--epochs", "3",
        "--amp", "bfloat16", "--checkpoint", "two.pt", "--device", "cpu",
    ]  # fmt: skip
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    run = run_python(command, tmp_path, environment)
    assert run.returncode == 0, run.stderr
    assert "2 x cpu, from epoch 0" in run.stdout
    assert len(re.findall(r"^  epoch", run.stdout, re.M)) == 3
    kept = torch.load(tmp_path / "two.pt", weights_only=True)
    assert kept["epoch"] == 3
    assert kept["losses"][-1] < kept["losses"][0]
    assert all(value.isfinite().all() for value in kept["net"].values())
