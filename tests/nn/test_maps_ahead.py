"""Kernel maps made on a stream of their own: results as without, each map waited for before it is
read, and what nobody foresaw made in its place.

A stand-in for the stream notes what is done there. Until a mark is waited for, indices made before
it have rows that no cloud has.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import layoutconv as lc
from layoutconv.errors import ArgumentError
from layoutconv.nn import graph_bucket
from layoutconv.sparse import Coordinates, SparseTensor
from layoutconv.sparse.coords.row_plan import FixedRows, RowCount
from layoutconv.sparse.maps.ahead import Ahead, Asked, Wait, asked_of, joined
from layoutconv.sparse.maps.two_way import KernelMap

from .test_graphed import Levels, captured, check_same, cloud, with_integers
from .test_graphed_step import check_same as check_gradients
from .test_graphed_step import eagerly, integers, squares, step_of

NOWHERE = 10**6


class Lazy:
    """A stream that does its work when somebody waits for it: before that, indices are wrong."""

    def __init__(self) -> None:
        self.done: list[str] = []
        self._hidden: list[tuple[Tensor, Tensor]] = []
        self._work: list[list[tuple[Tensor, Tensor]]] = []  # before each mark

    @contextmanager
    def fork(self) -> Iterator[None]:
        self.done.append("fork")
        yield

    def mark(self) -> Wait:
        number = len(self._work)
        self.done.append("mark")
        self._work.append(self._hidden)
        self._hidden = []

        def wait() -> None:
            self.done.append(f"wait {number}")
            for work in self._work[: number + 1]:  # what a stream does, it does in order
                for tensor, right in work:
                    tensor.copy_(right)
                work.clear()

        return wait

    def hide(self, tensor: Tensor) -> None:
        self._hidden.append((tensor, tensor.clone()))
        tensor.fill_(NOWHERE)


@pytest.fixture
def side(monkeypatch: pytest.MonkeyPatch) -> Lazy:
    found = Lazy()
    monkeypatch.setattr(graph_bucket.ahead, "side_of", lambda device: found)
    return found


def test_networks_give_the_same(side: Lazy) -> None:
    net = with_integers(Levels())
    graph = captured(net)
    with torch.no_grad():
        for number, rows in enumerate((300, 310, 250, 1, 305)):
            x = cloud(rows, number)
            check_same(graph(x), net(x))
    assert graph.report().hits >= 2
    assert side.done.count("fork") >= 4
    runs = " ".join(side.done).split("fork")[1:]
    assert all(run.count("wait") > 1 for run in runs)


def of_two_levels() -> nn.Sequential:
    layers = (
        lc.nn.SubmConv3d(3, 4, 3), nn.ReLU(), lc.nn.SparseConv3d(4, 4, 3, 2, 1),
        lc.nn.SubmConv3d(4, 4, 3), lc.nn.SparseInverseConv3d(4, 2, 3),
    )  # fmt: skip
    return integers(lc.nn.Sequential(*layers))


def test_steps_leave_the_same(side: Lazy) -> None:
    net, other = of_two_levels(), of_two_levels()
    step = step_of(net, squares)
    for number, rows in enumerate((200, 180, 230, 190)):
        net.zero_grad()
        other.zero_grad()
        x = cloud(rows, number)
        step(x)
        eagerly(other, squares, x)
        check_gradients(net, other, exact=True)
    assert step.report().hits >= 2
    assert side.done.count("fork") >= 3


class Chosen(nn.Module):
    """A network that asks for other maps than it did before, when it is told to."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.other = lc.nn.SubmConv3d(3, 3, 3), lc.nn.SubmConv3d(3, 3, (1, 3, 3))
        self.down = lc.nn.SparseConv3d(3, 2, 2, stride=2)
        self.turned = False

    def forward(self, x: SparseTensor) -> Any:
        return self.down(self.other(x) if self.turned else self.first(x))


def asked_by(net: nn.Module, x: SparseTensor, ahead: Ahead | None = None) -> tuple[Any, FixedRows]:
    """Run with fixed rows, as many as there are."""
    count = RowCount()
    with torch.no_grad(), count.in_effect():
        net(x)
    rows = [len(level) for level in count.levels]
    plan = FixedRows(count.keys, rows, [len(x)], beside=ahead)
    with torch.no_grad(), plan.in_effect(), joined(ahead):
        cells = Coordinates(x.coords, x.spatial_shape, x.batch_size, padded=True, valid=True)
        plan.start(cells)
        return net(SparseTensor(x.features, cells)), plan


def test_a_map_that_nobody_foresaw_is_made_in_its_place_after_all_others() -> None:
    net, x = Chosen(), cloud(200, 0)
    with_integers(net)
    _, plan = asked_by(net, x)
    asked = asked_of(plan.given, plan.made)
    assert [one.source for one in asked] == [("given", 0), ("given", 0)]
    side = Lazy()
    found, plan = asked_by(net, x, Ahead(asked, side))
    assert not plan.made  # all of them were foreseen
    assert side.done == ["fork", "mark", "mark", "mark", "wait 0", "wait 1", "wait 2"]
    check_same(found.features, net(x).features)

    net.turned = True
    side = Lazy()
    found, plan = asked_by(net, x, Ahead(asked, side))
    (made,) = plan.made
    assert made.key != asked[0].key
    assert side.done == ["fork", "mark", "mark", "mark", "wait 2"]  # and for none after that
    check_same(found.features, net(x).features)


def test_maps_are_read_after_their_mark_alone() -> None:
    net, x = with_integers(Levels()), cloud(300, 1)
    expected, plan = asked_by(net, x)
    asked = asked_of(plan.given, plan.made)
    side = Lazy()
    hidden = [_hiding(one, side) for one in asked]
    found, plan = asked_by(net, x, Ahead(hidden, side))
    assert not plan.made
    check_same(found["mean"], expected["mean"])
    check_same(found["dense"], expected["dense"])
    check_same(found["back"][1], expected["back"][1])
    check_same(found["up"].features, expected["up"].features)


def test_without_waits_that_test_would_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    net, x = with_integers(Levels()), cloud(300, 1)
    _, plan = asked_by(net, x)
    side = Lazy()
    hidden = [_hiding(one, side) for one in asked_of(plan.given, plan.made)]
    monkeypatch.setattr("layoutconv.sparse.maps.two_way.TwoWay.arrive", lambda self, way: None)
    with pytest.raises(ArgumentError, match=str(NOWHERE)):
        asked_by(net, x, Ahead(hidden, side))


def _hiding(asked: Asked, side: Lazy) -> Asked:
    """The same, whose index is right once its mark is waited for."""

    def make(inputs: Coordinates, outputs: Coordinates | None) -> KernelMap:
        found = asked.make(inputs, outputs)
        side.hide(found.index)
        return found

    return asked._replace(make=make, sorted=(False, False), indexed=(True, False))


def test_a_run_that_fails_joins_and_says_why(side: Lazy) -> None:
    x = cloud(50, 2)
    _, plan = asked_by(with_integers(Chosen()), x)
    ahead = Ahead(asked_of(plan.given, plan.made), side)

    run = FixedRows((), (), [50], beside=ahead)

    def fail() -> None:
        with run.in_effect(), joined(ahead):
            run.start(Coordinates(x.coords, x.spatial_shape, x.batch_size, padded=True, valid=True))
            raise ValueError("no such class")

    with pytest.raises(ValueError, match="no such class"):
        fail()
    assert side.done[-1] == "wait 2"


def test_a_map_that_fails_joins_and_says_why() -> None:
    x, side = cloud(50, 2), Lazy()
    _, plan = asked_by(with_integers(Chosen()), x)

    def fail(inputs: Coordinates, outputs: Coordinates | None) -> KernelMap:
        raise ValueError("no such map")

    first, second = asked_of(plan.given, plan.made)
    ahead = Ahead([first, second._replace(make=fail)], side)
    run = FixedRows((), (), [50], beside=ahead)
    cells = Coordinates(x.coords, x.spatial_shape, x.batch_size, padded=True, valid=True)
    with pytest.raises(ValueError, match="no such map"), run.in_effect(), joined(ahead):
        run.start(cells)
    assert side.done == ["fork", "mark", "mark", "wait 1"]
