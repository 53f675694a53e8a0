"""Choices remembered from races: found again for their like, on their GPU, whole or not at all."""

from __future__ import annotations

import json
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from layoutconv.conv import ConvProblem, fprop_view
from layoutconv.errors import ArgumentError
from layoutconv.gpu import measured_choices
from layoutconv.gpu.measured_choices import MeasuredChoice, find, key_of, remember, size_class
from layoutconv.planning.cost_model import Problem, expected_ratio
from layoutconv.planning.machine import MACHINES
from layoutconv.planning.tile import TileConfig, persistent, specialized
from layoutconv.planning.tile_json import tile_to_json

MACHINE = replace(MACHINES["sm_90a"], name="NVIDIA H200")
PROBLEM = Problem(1000, 64, 576, 64, "float16", 2)
CHOICE = MeasuredChoice(TileConfig((64, 64, 64)), 1, "some", 5.0, 6.0)
KEY = "0" * 64


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("LAYOUTCONV_CACHE_DIR", str(tmp_path))
    return tmp_path


def test_what_is_remembered_is_found_on_that_gpu_alone() -> None:
    assert find(KEY, PROBLEM, MACHINE) is None
    remember(KEY, MACHINE, CHOICE)
    assert find(KEY, PROBLEM, MACHINE) == (CHOICE.tile, 1)
    assert list(measured_choices.kept()) == [("NVIDIA H200", CHOICE)]
    assert find(KEY, PROBLEM, replace(MACHINE, name="NVIDIA A100")) is None
    assert find("1" * 64, PROBLEM, MACHINE) is None
    again = replace(CHOICE, tile=TileConfig((128, 64, 64)))
    remember(KEY, MACHINE, again)
    assert find(KEY, PROBLEM, MACHINE) == (again.tile, 1)


def test_another_version_of_the_package_starts_anew() -> None:
    remember(KEY, MACHINE, CHOICE)
    own = measured_choices.folder()
    assert own.name == measured_choices.__version__
    other = own.rename(own.with_name("99.0"))
    assert find(KEY, PROBLEM, MACHINE) is None
    other.rename(own)
    assert find(KEY, PROBLEM, MACHINE) is not None


@pytest.mark.parametrize("damage", ["", "{", "[]", '{"tile": {"m": 64}}', '{"tile": 3}'])
def test_what_is_damaged_is_not_found(damage: str) -> None:
    remember(KEY, MACHINE, CHOICE)
    [path] = measured_choices.folder().glob("*/*")
    path.write_text(damage)
    assert find(KEY, PROBLEM, MACHINE) is None
    assert list(measured_choices.kept()) == []


OLD_TILE = {"m": 128, "n": 64, "k": 64, "warps_m": 4, "warps_n": 1, "stages": 3, "producers": 128}
OLD_FILE = {
    "gpu": "NVIDIA H200",
    "tile": {**OLD_TILE, "taps": 1, "parts": 1, "sharing": 1, "lasting": False},
    "splits": 1, "problem": "some", "microseconds": 5.0, "model_microseconds": 6.0,
}  # fmt: skip


def test_a_file_of_before_tiles_had_named_choices_is_migrated() -> None:
    remember(KEY, MACHINE, CHOICE)
    [path] = measured_choices.folder().glob("*/*")
    path.write_text(json.dumps(OLD_FILE))
    tile = specialized((128, 64, 64), (4, 1), 3)
    assert find(KEY, PROBLEM, MACHINE) == (tile, 1)
    assert list(measured_choices.kept()) == [("NVIDIA H200", replace(CHOICE, tile=tile))]
    remember(KEY, MACHINE, replace(CHOICE, tile=tile))
    assert json.loads(path.read_text())["format"] == 2
    assert find(KEY, PROBLEM, MACHINE) == (tile, 1)


@pytest.mark.parametrize(
    "changes",
    [{"tile": {**OLD_TILE, "sharing": 2}}, {"format": 3}, {"tile": {**OLD_TILE, "sms": 2}}],
    ids=["multicast", "a format to come", "an unknown field"],
)
def test_a_file_that_cannot_be_migrated_is_ignored_with_a_word(changes: dict[str, object]) -> None:
    remember(KEY, MACHINE, CHOICE)
    [path] = measured_choices.folder().glob("*/*")
    path.write_text(json.dumps({**OLD_FILE, **changes}))
    with pytest.warns(UserWarning, match="a tuned choice of format . is ignored"):
        assert find(KEY, PROBLEM, MACHINE) is None


def test_what_cannot_run_is_not_found() -> None:
    remember(KEY, MACHINE, replace(CHOICE, tile=TileConfig((128, 256, 64), (2, 4), 4)))
    assert find(KEY, PROBLEM, MACHINE) is not None
    assert find(KEY, PROBLEM, replace(MACHINES["sm_86"], name=MACHINE.name)) is None
    remember(KEY, MACHINE, replace(CHOICE, splits=4))
    assert find(KEY, PROBLEM, MACHINE) is None
    assert find(KEY, replace(PROBLEM, splittable=True), MACHINE) == (CHOICE.tile, 4)
    shared = specialized((128, 64, 32), (4, 1), 4, halo_taps=3)
    remember(KEY, MACHINE, replace(CHOICE, tile=shared))
    assert find(KEY, PROBLEM, MACHINE) is None
    assert find(KEY, replace(PROBLEM, halo_taps=3), MACHINE) == (shared, 1)


def test_it_holds_for_sizes_where_the_model_expects_no_more_of_its_pick() -> None:
    """64x128 tiles fill three CTAs of each SM at 12,544 rows, and start a new wave at 13,392."""
    raced = Problem(12544, 256, 2304, 256, "float16", 2)
    tile = specialized((64, 128, 64), (4, 1), 3)
    ratio = expected_ratio(raced, tile, 1, MACHINE)
    remember(KEY, MACHINE, replace(CHOICE, tile=tile, expected=ratio))
    assert find(KEY, raced, MACHINE) == (tile, 1)
    assert find(KEY, replace(raced, m=12500), MACHINE) == (tile, 1)
    other = replace(raced, m=13392)
    assert expected_ratio(other, tile, 1, MACHINE) > 1.1 * ratio
    assert find(KEY, other, MACHINE) == (tile, 1)  # it was faster by a fifth
    remember(KEY, MACHINE, replace(CHOICE, microseconds=5.8, tile=tile, expected=ratio))
    assert find(KEY, other, MACHINE) is None
    assert find(KEY, raced, MACHINE) == (tile, 1)


def test_it_holds_for_no_rows() -> None:
    """An empty batch is of the class of one row, and takes no time."""
    remember(KEY, MACHINE, replace(CHOICE, expected=1.2))
    for splittable in (False, True):
        empty = replace(PROBLEM, m=0, splittable=splittable)
        assert find(KEY, empty, MACHINE) == (CHOICE.tile, 1)


@pytest.mark.parametrize(
    "tile", [specialized((64, 48, 64), (4, 1), 2), persistent((192, 48, 64), (12, 1), 2)]
)
def test_a_tile_that_the_table_has_no_more_is_not_found(tile: TileConfig) -> None:
    remember(KEY, MACHINE, replace(CHOICE, tile=tile, expected=1.0))
    assert find(KEY, PROBLEM, MACHINE) is None


def test_a_table_comes_with_the_package_and_the_disk_overrides_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tile = TileConfig((256, 64, 32), (4, 1), 4)
    times = {"microseconds": 1.0, "model_microseconds": 2.0}
    entry = {"format": 2, "tile": tile_to_json(tile), "splits": 1, "problem": "", **times}
    monkeypatch.setitem(measured_choices._shipped(), "NVIDIA H200", {KEY: entry})
    assert find(KEY, PROBLEM, MACHINE) == (tile, 1)
    assert find(KEY, PROBLEM, replace(MACHINE, name="another")) is None
    remember(KEY, MACHINE, CHOICE)
    assert find(KEY, PROBLEM, MACHINE) == (CHOICE.tile, 1)


def test_the_table_of_the_package_is_one() -> None:
    for table in measured_choices._shipped().values():
        for key, entry in table.items():
            assert len(key) == 64
            assert measured_choices._parse(entry) is not None


def test_a_table_has_what_is_faster_than_the_models_pick(tmp_path: Path) -> None:
    path, slower = (
        tmp_path / "table.json",
        replace(CHOICE, microseconds=1.0, model_microseconds=1.0),
    )
    faster = replace(CHOICE, microseconds=1.0, model_microseconds=2.0)
    assert (
        measured_choices.add_to_table(path, "a GPU", {"b": faster, "a": faster, "c": slower}) == 2
    )
    assert measured_choices.add_to_table(path, "another", {"a": faster}) == 1
    assert measured_choices.add_to_table(path, "a GPU", {"b": slower}) == 1  # the model has learnt
    table = json.loads(path.read_text())
    assert {gpu: list(own) for gpu, own in table.items()} == {"a GPU": ["a"], "another": ["a"]}
    assert measured_choices._parse(table["a GPU"]["a"]) == faster


def test_a_key_is_of_the_kernel_and_of_a_class_of_sizes() -> None:
    def key(spatial: int = 16, channels: int = 64, **of: object) -> str:
        view = fprop_view(ConvProblem((2, spatial, spatial, channels), (64, 3, 3), padding=1))
        problem = replace(PROBLEM, m=view.m, k=view.k, channels=channels, **of)
        return key_of(view, problem, "float16", (8, 8, 8), (1, 1))

    assert key() == key(17)  # 512 and 578 rows
    others = [key(32), key(channels=32), key(dtype="bfloat16"), key(splittable=True)]
    assert len({key(), *others}) == 5
    for extent in range(1, 5000):
        assert 2 ** (size_class(extent) - 0.5) <= extent <= 2 ** (size_class(extent) + 0.5)


def test_writers_and_readers_at_once(folder: Path) -> None:
    """Whoever reads sees one of the choices, whole; nothing is left beside them."""
    tiles = [TileConfig((m, 64, 64)) for m in (32, 64, 96, 128)]
    remember(KEY, MACHINE, replace(CHOICE, tile=tiles[0]))

    def work(at: int) -> bool:
        remember(KEY, MACHINE, replace(CHOICE, tile=tiles[at % 4], problem="x" * 10000))
        found = find(KEY, PROBLEM, MACHINE)
        return found is not None and found[0] in tiles

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        with ThreadPoolExecutor(8) as pool:
            assert all(pool.map(work, range(400)))
    finally:
        sys.setswitchinterval(interval)
    [path] = (path for path in folder.rglob("*") if path.is_file())
    assert json.loads(path.read_text())["gpu"] == "NVIDIA H200"


def test_the_environment_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    for value, meaning in (("1", True), ("0", False), ("", False)):
        monkeypatch.setenv("LAYOUTCONV_TUNE", value)
        assert measured_choices.wanted() is meaning
    monkeypatch.delenv("LAYOUTCONV_TUNE")
    assert not measured_choices.wanted()
    monkeypatch.setenv("LAYOUTCONV_TUNE", "yes")
    with pytest.raises(ArgumentError, match="`LAYOUTCONV_TUNE`: expected 0 or 1, got 'yes'"):
        measured_choices.wanted()
