"""The networks of the examples: they learn a little in a few steps, and what they learn from."""

from __future__ import annotations

import math
import re

import numpy as np
import pytest
import torch

from layoutconv.sparse.coords.street import street, street_and_cars

MINKUNET = ["--width", "4", "--stages", "2", "--voxel-size", "0.4", "--steps", "6"]
SECOND = ["--width", "4", "--batches", "1", "--steps", "6"]
RAYS = {"beams": 24, "azimuths": 320}  # of a street that is seen fast


@pytest.fixture
def sweep(shared_cloud):
    return shared_cloud("lidar_sweep.bin")


@pytest.fixture
def minkunet(example, monkeypatch, tmp_path):
    monkeypatch.setenv("LAYOUTCONV_DATA", str(tmp_path))
    return example("minkunet_segmentation", street=lambda seed, **_: street(seed, **RAYS))


@pytest.fixture
def second(example):
    quick = lambda seed, **_: street_and_cars(seed, **RAYS)  # noqa: E731
    return example("second_backbone", street_and_cars=quick)


def learned(module, arguments, picture, capsys):
    """Return what the example printed; its loss fell, and its picture is not empty."""
    assert module.main([*arguments, "--device", "cpu", "--output", str(picture)]) == 0
    told = capsys.readouterr().out
    first, last, verdict = re.search(r"third ([\d.]+), .* ([\d.]+), (\w+)", told).groups()
    assert float(last) < 0.95 * float(first)
    assert verdict == "ok"
    assert picture.read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
    assert picture.stat().st_size > 20_000
    return told


def test_a_minkunet_learns_a_synthetic_street(minkunet, capsys, tmp_path):
    told = learned(minkunet, MINKUNET, tmp_path / "a.png", capsys)
    assert "MinkUNet on a synthetic street" in told
    assert "computed from geometry" in told
    assert len(re.findall(r"\d\.\d%", told)) == 3


def test_a_minkunet_learns_a_real_sweep_in_bfloat16(sweep, minkunet, capsys, tmp_path):
    arguments = [*MINKUNET, "--amp", "--points", str(sweep)]
    told = learned(minkunet, arguments, tmp_path / "a.png", capsys)
    assert "lidar_sweep.bin: 17,238 points" in told


def test_a_backbone_learns_where_cars_are(second, capsys, tmp_path):
    told = learned(second, SECOND, tmp_path / "a.png", capsys)
    assert re.search(r"\d+ of \d+ cars found", told)


@pytest.mark.parametrize("name", ["minkunet", "second"])
def test_a_loss_that_does_not_fall_is_told(request, name, capsys, tmp_path):
    module = request.getfixturevalue(name)
    module.train = lambda *_: [1.0, 1.0, math.nan]
    arguments = MINKUNET if name == "minkunet" else SECOND
    assert module.main([*arguments, "--output", str(tmp_path / "a.png")]) == 1
    assert "FAILED" in capsys.readouterr().out


def test_full_is_for_what_is_not_given(minkunet):
    options = minkunet._options(["--full", "--steps", "3"])
    assert {**minkunet.FULL, "steps": 3}.items() <= vars(options).items()
    assert vars(minkunet._options([]))["voxel_size"] > options.voxel_size


def test_what_makes_no_sense_is_one_line(minkunet, capsys, tmp_path):
    path = tmp_path / "none.bin"
    assert minkunet.main(["--points", str(path)]) == 2
    error = capsys.readouterr().err
    assert str(path) in error
    assert error.count("\n") == 1


def surface(*axes):
    return np.stack(np.meshgrid(*axes, indexing="ij"), axis=-1).reshape(-1, 3)


def test_labels_are_those_of_a_scene_that_is_made_so(minkunet):
    fine, zero = np.arange(0.05, 8, 0.1), np.zeros(1)
    angle = np.arange(0, 2 * np.pi, 0.5)
    ring = np.stack([2 + 0.1 * np.cos(angle), 6 + 0.1 * np.sin(angle)], axis=-1)
    height = np.arange(0.35, 3.5, 0.05)
    parts = {
        "ground": surface(fine, fine, zero),
        "wall": surface(np.array([6.1]), fine, np.arange(1.05, 4, 0.1)),
        "low": surface(np.arange(1, 2, 0.1), np.arange(1, 2, 0.1), np.array([0.5, 1.0])),
        "pole or tree": np.concatenate(
            [np.column_stack([ring, np.full(len(ring), z)]) for z in height]
        ),
    }
    corner = np.array([16.0, -8.0, -3.0])
    points = torch.from_numpy(np.concatenate(list(parts.values())) + corner)
    found = minkunet.labels(points).split([len(part) for part in parts.values()])
    for name, kinds in zip(parts, found, strict=True):
        assert (kinds == minkunet.CLASSES.index(name)).double().mean() > 0.95, name


def test_neighbourhoods_are_those_of_the_voxels_around(minkunet):
    points = torch.rand(200, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0)) * 4
    values, normals = minkunet.neighbourhoods(points)
    cells = (points / 0.5).floor()
    for point in range(0, 200, 7):
        near = points[((cells - cells[point]).abs() <= 1).all(1)]
        spread = torch.cov(near.T, correction=0)
        torch.testing.assert_close(values[point], torch.linalg.eigvalsh(spread))
        if len(near) > 3:
            along = spread @ normals[point]
            torch.testing.assert_close(along, values[point, 0] * normals[point])


def test_turning_keeps_heights_and_distances(minkunet):
    torch.manual_seed(0)
    points = torch.rand(40, 4, dtype=torch.float64)
    orientations = set()
    for _ in range(12):
        turned = minkunet.turned(points)
        torch.testing.assert_close(turned[:, 2:], points[:, 2:])
        torch.testing.assert_close(torch.pdist(turned[:, :2]), torch.pdist(points[:, :2]))
        a, b = torch.linalg.det(points[:2, :2]), torch.linalg.det(turned[:2, :2])
        orientations.add(round(float(a / b), 6))
    assert orientations == {1.0, -1.0}


def test_held_out_blocks_are_a_quarter_of_the_ground(minkunet):
    x, y = torch.meshgrid(torch.arange(-64.0, 64), torch.arange(-64.0, 64), indexing="ij")
    hidden = minkunet.held_out(torch.stack([x.flatten(), y.flatten()], dim=1))
    assert hidden.double().mean() == 0.25


def test_the_peaks_of_a_target_are_the_cars(second):
    for seed in range(4):
        middles = second.seen(*street_and_cars(seed, beams=48, azimuths=480))
        assert len(middles) > 5
        target = second.heat(middles)
        peaks = second.peaks(target)
        away = torch.cdist(peaks.double(), torch.from_numpy(middles))
        # Half the diagonal of a cell, and the parked car beside a passing one may have no peak.
        reach = second.CELL / math.sqrt(2) + 1e-6
        assert (away.amin(1) <= reach).all()
        assert (away.amin(0) <= reach).sum() >= len(middles) - 2
        assert target.amax() == 1
    assert second.heat(np.zeros((0, 2))).sum() == 0


def test_a_right_score_costs_nothing_and_a_wrong_one_much(second):
    target = second.heat(np.array([[3.0, 2.0]]))[None]
    right = torch.where(target == 1, 20.0, -20.0)
    assert second.focal_loss(right, target) < 1e-6
    assert second.focal_loss(-right, target) > 20
    beside = right.clone()
    beside[0, 0][target[0, 0].sub(0.8).abs() < 0.2] = 0.0
    far = right.clone()
    far[0, 0, :2, :2] = 0.0
    assert second.focal_loss(beside, target) < second.focal_loss(far, target)


@pytest.mark.parametrize("name", ["minkunet_segmentation", "second_backbone"])
def test_a_picture_that_has_no_folder_is_refused_before_training(name, example, capsys):
    with pytest.raises(SystemExit):
        example(name).main(["--output", "nowhere/learned.png"])
    assert "there is no folder nowhere" in capsys.readouterr().err


@pytest.mark.skipif(torch.cuda.is_available(), reason="of machines without a GPU")
@pytest.mark.parametrize(
    "name",
    [
        "split_volume", "split_cloud", "train_data_parallel", "stream_cloud", "own_epilogue",
        "ck_tile_windows", "gather_gemm_scatter", "gett", "memory_layouts",
    ],
)  # fmt: skip
def test_an_example_says_why_there_is_no_gpu(name, example):
    with pytest.raises(ValueError, match=r"`device`: expected a GPU of .* for cuda, got none: "):
        example(name).main(["--device", "cuda"])
