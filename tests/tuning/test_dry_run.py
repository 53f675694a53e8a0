"""A dry run: kernels of all kinds are noted, torch makes the maps, none runs."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

from layoutconv.base.dry_hooks import dry_hooks
from layoutconv.gpu import row_norm
from layoutconv.gpu.dry_run import dry, loaded
from layoutconv.gpu.row_norm import Norm
from layoutconv.kernels.compile import store
from layoutconv.kernels.maps import build_map
from layoutconv.sparse import Coordinates, strided_map, submanifold_map
from layoutconv.sparse.coords.cell_table import SortedTable

from ..stand_ins import Gpu
from ..watched import Watch

SHAPE = 9, 8, 7


def compiled(number: float) -> Callable[..., None]:
    """A kernel that writes a number, and what it reads."""

    def kernel(a: Tensor, out: Tensor) -> None:
        out.copy_(a + number)

    return kernel


def key_of(number: float) -> Hashable:
    return "adds", number, "sm_90a"


@pytest.fixture
def notes(gpu: Gpu, kernel_folder: Any) -> list[tuple[Any, bytes]]:
    gpu.like("sm_90a")
    gpu.says(current_device=-1)
    return []


@pytest.fixture
def compiled_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """No kernel is kept on disk."""
    monkeypatch.setattr(store, "_kept", lambda digest, compile, about: compile())


def noted(notes: list[tuple[Any, bytes]], **options: Any) -> Any:
    return dry(note_other=lambda *note: notes.append(note), **options)


def cells() -> Tensor:
    random = torch.Generator().manual_seed(0)
    keys = torch.randperm(2 * 9 * 8 * 7, generator=random)[:200]
    columns = keys // 504, keys // 56 % 9, keys // 7 % 8, keys % 7
    return torch.stack(columns, 1).int()


@pytest.mark.usefixtures("compiled_each_time")
def test_a_kernel_of_another_kind_writes_zeros_and_is_loaded_afterwards(
    notes: list[tuple[Any, bytes]],
) -> None:
    a, out = torch.ones(3), torch.full((3,), torch.nan)
    with noted(notes):
        kernel = store.load(key_of(2.0), partial(compiled, 2.0), writes=(1,))
        kernel(a, out)
        assert out.tolist() == [0.0] * 3
    kernel(a, out)
    assert out.tolist() == [3.0] * 3
    ((key, request),) = notes
    assert key == key_of(2.0)
    loaded(request)(a, out.zero_())  # as another process does
    assert out.tolist() == [3.0] * 3


def test_a_dry_call_within_another_ends_alone() -> None:
    """Kernels after it are noted by the call around it, whatever it noted itself."""
    outer: list[Any] = []
    with dry(note_other=lambda key, request: outer.append(key), stands_in=True):
        for own in (None, lambda key, request: None):
            with dry(note_other=own):
                pass
            assert dry_hooks.load is not None
            assert dry_hooks.covers(torch.zeros(1))
        store.load("later", print)
    assert outer == ["later"]
    assert dry_hooks.load is None
    assert not dry_hooks.covers(torch.zeros(1))


@pytest.mark.usefixtures("compiled_each_time")
def test_what_no_other_process_can_be_sent_is_loaded(
    notes: list[tuple[Any, bytes]],
) -> None:
    out = torch.zeros(3)
    with noted(notes):
        store.load(key_of(1.0), lambda: compiled(1.0), writes=(1,))(torch.ones(3), out)
    assert out.tolist() == [2.0] * 3
    assert notes == []


@pytest.mark.usefixtures("compiled_each_time")
def test_a_kernel_that_is_loaded_is_noted_too(
    notes: list[tuple[Any, bytes]],
) -> None:
    """It is on disk, which says so; else a call after ``unload`` would compile it."""
    store.load(key_of(1.0), partial(compiled, 1.0))
    with noted(notes):
        store.load(key_of(1.0), partial(compiled, 1.0))
    assert [key for key, _ in notes] == [key_of(1.0)]


def everything(coordinates: Coordinates) -> list[Tensor]:
    """The tensors of maps, of both ways and their pairs."""
    found: list[Tensor] = []
    for made in (
        submanifold_map(coordinates, 3),
        strided_map(coordinates, 3, 2, 1),
        strided_map(coordinates, 2, 2, capacity=150),
    ):
        pairs = made.pairs(32)
        found += [*made.sorted, *made.inverse.sorted, made.index, made.outputs.cells]
        found += [pairs.outputs, pairs.inputs, pairs.lengths]
    return found


def test_maps_of_a_dry_run_are_those_of_torch(notes: list[tuple[Any, bytes]]) -> None:
    expected = everything(Coordinates(cells(), SHAPE, 2))
    with noted(notes, stands_in=True):
        found = everything(Coordinates(cells(), SHAPE, 2))
    assert all(map(torch.equal, found, expected))
    names = str([key for key, _ in notes])
    for kernel in ("Keys", "Search", "Mark", "WriteCells", "Scatter", "CountPairs", "WritePairs"):
        assert f"'{kernel}'" in names


def test_cells_of_a_dry_run_serve_later_calls(notes: list[tuple[Any, bytes]]) -> None:
    expected, coordinates = (Coordinates(cells(), SHAPE, 2) for _ in range(2))
    with noted(notes, stands_in=True):
        submanifold_map(coordinates, 3).start()
    count = len(notes)
    assert count
    for later in (expected, coordinates):
        later.check()
    assert torch.equal(strided_map(coordinates, 3).index, strided_map(expected, 3).index)
    assert len(notes) == count
    assert not dry_hooks.covers(coordinates.cells)
    assert dry_hooks.load is None


def test_cells_on_a_cpu_ask_for_no_kernel(notes: list[tuple[Any, bytes]], watched: Watch) -> None:
    """The network runs there, whatever GPU there is."""
    of_a_gpu = watched("HashTable", build_map)
    with noted(notes):
        everything(coordinates := Coordinates(cells(), SHAPE, 2))
        assert type(coordinates.table) is SortedTable
    assert notes == of_a_gpu == []


def test_tables_of_taps_are_as_they_were(notes: list[tuple[Any, bytes]]) -> None:
    """Others look up what is in them, with memory on a CPU: the simulator."""
    offsets = tuple((0, 0, i) for i in range(-1, 2))
    plan = build_map._plan(offsets, (1, 1, 1), 3, torch.device("cpu"), False)
    before = plan.natural.clone()
    with noted(notes, stands_in=True):
        submanifold_map(Coordinates(cells(), SHAPE, 2), (1, 1, 3)).index  # noqa: B018
    assert torch.equal(plan.natural, before)


def test_norms_of_a_dry_run_are_zeros(notes: list[tuple[Any, bytes]], gpu: Gpu) -> None:
    gpu.says(get_device_capability=(9, 0))
    x, ones = torch.randn(40, 16), torch.ones(16)
    mean = torch.zeros(16)
    norm = Norm(ones, ones.clone(), (mean, ones.clone()), 0.1, 1e-5, past=x, activation="relu")
    with noted(notes):
        out, kept = row_norm.normalised(x, norm)
        dx, dpast, _ = row_norm.gradients(x, norm, out, kept, x)
        memory = (2, 16, 4, 5), (320, 1, 80, 16)
        image, _ = row_norm.normalised(x, norm, None, memory)
        gradients = row_norm.gradients(x, norm, image, kept, x, None, memory)[:2]
    assert dpast is not None
    assert not any(found.any() for found in (out, dx, dpast, mean))
    for found in image, *gradients:
        assert found is not None
        assert (found.shape, found.stride(), found.any().item()) == (*memory, False)
    assert [key[0][0][0] for key, _ in notes] == ["Statistics", "GradientSums"] * 2
