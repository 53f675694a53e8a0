"""``layoutconv profile``: every convolution once, beside torch's; what is left says why."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from layoutconv.cli import main
from layoutconv.errors import ArgumentError, ArgumentTypeError
from layoutconv.nn.profiling import profile

MODEL = """
import torch
class Halved(torch.nn.Conv2d):
    def forward(self, input):
        return torch.einsum("kcrs,nchw->nkhw", self.weight, input) / 2
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = torch.nn.Conv2d(3, 8, 3, stride=2, padding=1)
        self.block = torch.nn.Conv2d(8, 8, 3, padding=1, groups=2)
        self.head = Halved(8, 4, 1)
    def forward(self, x, scale):
        x = self.block(self.block(self.stem(x).relu()))
        return {"out": self.head(x) * scale, "aux": (x,)}
def make():
    return Net(), (torch.randn(2, 3, 16, 16), 2)
broken, model = 3, Net()
def own_error():
    raise KeyError("of mine")
def wants(size):
    return Net(), torch.randn(2, 3, size, size)
def unfit():
    return Net(), (torch.randn(2, 5, 16, 16), 2)
"""


@pytest.fixture
def script(tmp_path: Path) -> str:
    path = tmp_path / "net.py"
    path.write_text(MODEL)
    return str(path)


@pytest.mark.parametrize("backward", [False, True])
def test_layers_and_the_model(
    script: str, backward: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    picture = tmp_path / "gains.png"
    command = ["profile", f"{script}:make", "--device", "cpu", "--seconds", "0.005", "--json"]
    assert main([*command, "--plot", str(picture), *["--backward"] * backward]) == 0
    found = json.loads(capsys.readouterr().out)
    stem, block, head = found["layers"]
    assert stem["layer"] == "Conv2d 3 -> 8, 3x3, stride 2x2"
    assert (block["name"], block["shape"], block["calls"]) == ("block", [2, 8, 8, 8], 2)
    assert block["layer"].endswith("2 groups")
    told = "which calls neither that of super() nor a convolution of torch.nn.functional"
    told = f"Halved overrides forward, {told}"
    assert (head["left"], head["own_us"], head["gain"]) == (told, None, 1.0)
    times = [found["torch_us"], found["own_us"], *(row["torch_us"] for row in (stem, block, head))]
    assert min(times) > 0
    assert abs(stem["gain"] * stem["own_us"] - stem["torch_us"]) < 1e-6 * stem["torch_us"]
    assert picture.stat().st_size > 1000


def test_a_table(script: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["profile", f"{script}:make", "--device", "cpu", "--seconds", "0.005"]) == 0
    head, *rows = capsys.readouterr().out.splitlines()
    assert head.split() == ["name", "layer", "input", "calls", "torch_us", "us", "gain", "left"]
    assert [row.split()[0] for row in rows] == ["stem", "block", "head", "model"]


def test_the_model_stays_as_it_was() -> None:
    model = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.BatchNorm2d(4))
    before = {name: t.clone() for name, t in model.state_dict().items()}
    profile(model, [torch.randn(1, 3, 8, 8)], backward=True, seconds=0.001)
    assert all(torch.equal(t, before[name]) for name, t in model.state_dict().items())
    assert type(model[0]) is torch.nn.Conv2d
    assert model[0].weight.grad is None


@pytest.mark.parametrize(("target", "sentence"), [
    ("{}:broken", "to be a function that returns a model and its inputs"),
    ("{}:none", "net.py has no none."), ("{}:model", "a function that returns a model and its"),
    ("no_module:x", "cannot be imported"), ("{}", "Expected FILE.py:NAME"),
    ("{}:own_error", "own_error raised KeyError: 'of mine' ({}, line 19)"),
    ("{}:wants", "wants raised TypeError: wants() missing 1 required positional argument"),
    ("{}:unfit", "unfit raised RuntimeError: Given groups=1"), ("{}:unfit", "({}, line 13)"),
])  # fmt: skip
def test_bad_targets(
    target: str, sentence: str, script: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["profile", target.format(script)]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert sentence.format(script) in error


def test_bad_arguments() -> None:
    with pytest.raises(ArgumentTypeError, match=r"`model`: expected a torch\.nn\.Module, got int"):
        profile(3, [])  # type: ignore[arg-type]
    with pytest.raises(
        ArgumentTypeError, match=r"`inputs`: .* such as \[x\], got Tensor of shape \(2, 3\)"
    ):
        profile(torch.nn.ReLU(), torch.ones(2, 3))  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match="`model`: expected a model that calls a convolution"):
        profile(torch.nn.ReLU(), [torch.ones(1)])
