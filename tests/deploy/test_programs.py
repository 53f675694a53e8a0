"""Exported networks as data: the same results, and nothing but operators in them."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch
from torch import Tensor

import layoutconv as lc
from layoutconv.deploy.program import NetworkProgram, ProgramRunner, exported
from layoutconv.errors import ArgumentError, ArgumentTypeError

from .networks import HALF, IMAGES, ROWS, cloud, dense, equal, sparse


def round_trip(
    net: torch.nn.Module, example: tuple[Tensor, ...], shapes: Any = None
) -> ProgramRunner:
    """The program of a network, as text and back, on the CPU."""
    program, weights = exported(net, example, shapes)
    return ProgramRunner(NetworkProgram(*json.loads(json.dumps(program))), weights, "cpu")


@torch.no_grad()
def test_a_dense_network_computes_the_same_as_data() -> None:
    net, image = dense()
    runner = round_trip(net, (image,), ({0: IMAGES},))
    assert equal(runner(image), net(image))
    images = torch.cat([image, 2 * image, -image]).to(memory_format=torch.channels_last)
    assert equal(runner(images), net(images))


@torch.no_grad()
def test_a_sparse_network_computes_the_same_as_data() -> None:
    """It does so of clouds of other sizes: the maps are operators of the program."""
    net = sparse()
    runner = round_trip(net, cloud(100), ({0: ROWS}, {0: ROWS}))
    for rows in (170, 3):
        other = cloud(rows)
        assert equal(runner(*other), net(*other))


def test_values_are_dropped_after_their_last_use() -> None:
    """All steps together would hold every activation until the end."""
    net = torch.nn.Sequential(*[torch.nn.ReLU() for _ in range(5)]).eval()
    runner = round_trip(net, (torch.ones(3),))
    ends = [values for values in runner._last if values]
    assert [len(values) for values in ends] == [1, 1, 1, 1]  # the result stays
    x = torch.tensor([1.0, -1.0, 2.0])
    assert torch.equal(runner(x), torch.tensor([1.0, 0.0, 2.0]))
    assert torch.equal(runner(x), torch.tensor([1.0, 0.0, 2.0]))


def test_inputs_are_checked_by_name() -> None:
    net, image = dense()
    runner = round_trip(net, (image,), ({0: IMAGES},))
    with pytest.raises(
        ArgumentError, match=r"`image`: expected the shape \(\w+ from 1 to 64, 3, 32"
    ):
        runner(image[..., :31])
    with pytest.raises(
        ArgumentTypeError, match=r"`image`: expected a tensor of torch.float16, got"
    ):
        runner(image.float())
    with pytest.raises(ArgumentError, match=r"`inputs`: expected 1 tensor, got 2"):
        runner(image, image)
    pair = round_trip(sparse(), cloud(100), ({0: ROWS}, {0: ROWS}))
    features, cells = cloud(9)
    with pytest.raises(ArgumentError, match=r"`cells`: expected the shape"):  # of as many rows
        pair(features, cells[:8])


class Doubled(torch.nn.Module):
    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return x.repeat_interleave(2, 0)[: y.shape[0]] + y


def test_extents_that_follow_from_others_are_checked() -> None:
    rows = torch.export.Dim("rows", min=1, max=64)
    shapes = {"x": {0: rows}, "y": {0: 2 * rows}}
    runner = round_trip(Doubled().eval(), (torch.ones(3, 2), torch.ones(6, 2)), shapes)
    assert torch.equal(runner(torch.ones(4, 2), torch.ones(8, 2)), torch.full((8, 2), 2.0))
    with pytest.raises(ArgumentError, match=r"`y`: expected an extent of 2\*.*is 4, got \(6, 2\)"):
        runner(torch.ones(4, 2), torch.ones(6, 2))


class Levels(torch.nn.Module):
    def forward(self, x: Tensor) -> dict[Any, Tensor]:
        return {2: x, "2": x + 1, 0: x + 2}


def test_results_have_the_keys_that_a_network_gives_them() -> None:
    made = round_trip(Levels().eval(), (torch.zeros(1),))(torch.zeros(1))
    assert [(key, value.item()) for key, value in made.items()] == [(2, 0.0), ("2", 1.0), (0, 2.0)]

    class Pairs(torch.nn.Module):
        def forward(self, x: Tensor) -> dict[Any, Tensor]:
            return {(0, 1): x}

    with pytest.raises(
        ArgumentError, match=r"`net`: expected results in dicts of names or numbers"
    ):
        exported(Pairs().eval(), (torch.zeros(1),))


@pytest.mark.parametrize(
    ("given", "got"),
    [
        (torch.ones(2, 2).to_sparse(), "torch.sparse_coo"),
        (torch.ones(2, 2).to_mkldnn(), "torch._mkldnn"),
        (torch.ones(2, 2).numpy(), "ndarray"),
    ],
)
def test_tensors_of_other_layouts_are_refused(given: Any, got: str) -> None:
    runner = round_trip(torch.nn.ReLU().eval(), (torch.ones(2, 2),))
    with pytest.raises(ArgumentTypeError, match=f"`input`: expected a tensor of .*, got {got}"):
        runner(given)


def test_a_network_that_trains_is_refused() -> None:
    net = torch.nn.BatchNorm2d(3).train()
    with pytest.raises(
        ArgumentError,
        match=r"`net`: expected a network in evaluation mode: call net.eval\(\)",
    ):
        exported(net, (torch.ones(2, 3, 4, 4),))


class Counting(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros(1))

    def forward(self, x: Tensor) -> Tensor:
        self.calls.add_(1)
        return x + self.calls


def test_a_network_that_counts_its_calls_goes_on_counting() -> None:
    runner = round_trip(Counting().eval(), (torch.ones(3),))
    assert [runner(torch.ones(3))[0].item() for _ in range(3)] == [2, 3, 4]


@pytest.mark.parametrize(
    "target",
    ["os.system", "operator.setitem", "operator.methodcaller", "torch.load", "aten.no_such.default",
     "aten.relu", "layoutconv.__class__.default", "aten.__name__.upper", "builtins.eval"],
)  # fmt: skip
def test_a_program_has_no_code(target: str) -> None:
    program = NetworkProgram([], [], [[target, [], {}]], [], {"tuple": []})
    with pytest.raises(ArgumentError, match=r"`path`: expected operators that this torch"):
        ProgramRunner(program, {}, "cpu")


def test_constants_are_what_they_say() -> None:
    """A name of torch is no constant, unless it is of the kind that is said."""
    for kind, name in (("dtype", "load"), ("memory_format", "float16"), ("layout", "no_such")):
        program = NetworkProgram([], [], [["aten.zeros.default", [[2], {kind: name}], {}]], [], 0)
        runner = ProgramRunner(program, {}, "cpu")
        assert runner._steps[0][1][1] == {kind: name}  # as any other argument, which aten refuses
    program = NetworkProgram(
        [], [], [["aten.zeros.default", [[2]], {"dtype": {"dtype": "float16"}}]], [{"value": 0}], 0
    )
    assert ProgramRunner(program, {}, "cpu")().dtype == HALF


def test_top_level_names() -> None:
    assert lc.pack.__module__ == "layoutconv.deploy.pack"
    assert lc.load_pack.__module__ == "layoutconv.deploy.packed_network"
