"""The gallery: every example is on its page with its picture; what the new ones print and find."""

from __future__ import annotations

import re
from importlib.util import module_from_spec, spec_from_file_location
from itertools import pairwise
from pathlib import Path

import pytest
import torch

import layoutconv

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
NAMES = sorted(path.stem for path in (ROOT / "examples").glob("*.py"))
PAGE = (DOCS / "gallery.md").read_text("utf-8")
RESNET3D = ["--width", "4", "--frames", "4", "--size", "16"]


def test_every_example_is_on_the_page_with_its_picture():
    shown = re.findall(r"\]\(images/gallery/(\w+)\.(svg|png)\)", PAGE)
    assert len(set(shown)) == len(shown)
    linked = re.findall(r"\]\(\.\./examples/(\w+)\.py\)", PAGE)
    assert sorted(linked) == NAMES
    kept = {path.stem for path in (DOCS / "images" / "gallery").iterdir()}
    assert {name for name, _ in shown} == kept
    # Those that run in several processes draw nothing here.
    several = {"split_cloud", "split_volume", "train_data_parallel", "train_labelled"}
    assert set(NAMES) - kept == {*several, "stream_cloud"}
    notebooks = re.findall(r"\]\(\.\./examples/notebooks/(\w+)\.ipynb\)", PAGE)
    assert sorted(notebooks) == sorted(
        path.stem for path in (ROOT / "examples" / "notebooks").glob("*.ipynb")
    )


def test_the_pictures_on_the_page_are_those_that_examples_draw():
    spec = spec_from_file_location("make_images", DOCS / "make_images.py")
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    drawn = {name: figure.render("svg") for name, figure in module.gallery().items()}
    kept = {path.stem: path.read_text("utf-8") for path in module.GALLERY.glob("*.svg")}
    assert drawn == kept, "run python docs/make_images.py"


@pytest.mark.parametrize("name", NAMES)
def test_help_has_an_example_that_makes_sense(example, capsys, name):
    """Its options are those of the help; and the docstring says how to run it."""
    module = example(name)
    assert f"examples/{name}.py" in module.__doc__
    with pytest.raises(SystemExit) as done:
        module.main(["--help"])
    assert done.value.code == 0
    told = capsys.readouterr().out
    described, _, command = told.partition("example: ")
    assert re.match(rf"(python|torchrun .*) examples/{name}\.py", " ".join(command.split()))
    assert set(re.findall(r"(?<=\s)--\w+", command.split(".py")[-1])) <= set(
        re.findall(r"--\w+", described)
    )


def picture_of(told, suffix="svg"):
    """The picture that an example says it has written."""
    path = Path(re.search(rf"[Pp]icture:? +(\S+\.{suffix})$", told, re.M)[1])
    assert path.stat().st_size > 2000
    return path


SMALL = {
    "algebra_tour": [],
    "swizzle_banks": ["--columns", "32"],
    "im2col_drawn": ["--size", "6", "7", "--taps", "3", "2", "--dilation", "2"],
    "own_epilogue": [],
    "resnet50_layers": ["--size", "32"],
    "convert_resnet3d": RESNET3D,
}


@pytest.mark.parametrize("name", SMALL)
def test_it_checks_itself_and_draws(example, capsys, name):
    module = example(name)
    assert module.main([*SMALL[name], "--output", "here.svg"]) == 0
    told = capsys.readouterr().out
    assert re.search(r"\bok$", told, re.M)
    assert "FAILED" not in told
    assert picture_of(told) == Path("here.svg")


@pytest.mark.parametrize("name", ["own_epilogue", "im2col_drawn"])
def test_a_wrong_result_is_found(example, capsys, spoiled, name):
    def wrong(y):
        y.view(-1)[-1] += 5

    spoiled(wrong)
    assert example(name).main(SMALL[name]) == 1
    assert capsys.readouterr().out.count("FAILED") == 1


@pytest.mark.parametrize("name", ["resnet50_layers", "convert_resnet3d"])
def test_a_wrong_layer_is_found(example, capsys, spoiled, name):
    for function, owner in (("conv2d", layoutconv), ("forward", layoutconv.nn.Conv3d)):
        spoiled(lambda y: y.mul_(1.01), function, owner)
    module = example(name)
    if name == "resnet50_layers":  # three of them will do
        every = list(module.layers(32))
        module.layers = lambda size: every[1:4]
    assert module.main(SMALL[name]) == 1
    assert "FAILED" in capsys.readouterr().out


def test_a_law_that_does_not_hold_is_told(example, capsys, monkeypatch):
    module = example("algebra_tour")
    monkeypatch.setattr(layoutconv, "complement", lambda a, size: layoutconv.Layout(6, 4))
    assert module.main([]) == 1
    assert re.findall(r"^(\w+) .*\n.*FAILED$", capsys.readouterr().out, re.M) == ["complement"]


def test_the_tour_stops_where_there_is_no_layout(example, capsys):
    example("algebra_tour").main([])
    told = capsys.readouterr().out
    assert len(re.findall(r": ok$", told, re.M)) == 10
    assert "divide       ((2,4),(2,2)):((8,1),(16,4))" in told
    assert "the mode 4:2 crosses a mode boundary at 3" in told


@pytest.mark.parametrize(
    ("columns", "ways", "best"), [(16, 2, "1,3,3"), (32, 4, "2,3,3"), (64, 8, "3,3,3")]
)
def test_the_swizzle_that_kernels_use_is_found(example, capsys, columns, ways, best):
    """Rows of 32, 64 and 128 bytes: the swizzles of Hopper's shared memory are of these."""
    assert example("swizzle_banks").main(["--columns", str(columns)]) == 0
    told = capsys.readouterr().out
    assert re.search(rf"^plain +{ways} +1 +0$", told, re.M)
    assert re.search(rf"^S<{best}> +1 +1 +0$", told, re.M)


def test_conflicts_are_those_of_the_hardware_rule(example):
    """Counted again: eight threads of 16 bytes go together, and ask 32 banks of 4 bytes."""
    module = example("swizzle_banks")
    for swizzle in (layoutconv.Swizzle(3, 3, 3), layoutconv.Swizzle(2, 3, 3)):
        for columns in (32, 64):
            ways = 0
            for chunk in range(4):
                starts = [swizzle(row * columns + 8 * chunk) // 2 for row in range(8)]
                banks = [(start + word) % 32 for start in starts for word in range(4)]
                ways = max(ways, *map(banks.count, range(32)))
            assert module.cost(columns, columns, swizzle).read == ways


def test_sizes_that_make_no_convolution_are_one_line(example, capsys):
    assert example("im2col_drawn").main(["--size", "2", "2", "--padding", "0"]) == 2
    error = capsys.readouterr().err
    assert "argument `filter`" in error
    assert error.count("\n") == 1


def test_resnet50_is_resnet50(example):
    """By its size: the paper's 3.8e9 multiply-adds are 4.1e9 with the stride in the 3x3."""
    module = example("resnet50_layers")
    every = list(module.layers(224))
    assert len(every) == 53
    assert len(set(every)) == 23
    views = [module.fprop_view(layer.problem) for layer in every]
    assert sum(view.m * view.n * view.k for view in views) == pytest.approx(4.09e9, rel=0.01)
    weights = sum(layer.K * layer.C * layer.R**2 for layer in every)
    assert weights == 23_454_912  # of 25.56e6 parameters; the rest are norms and the last layer
    for layer, after in pairwise(every[1:]):  # what one layer gives the next takes, or a shortcut
        assert after.H in (layer.problem.output[1], layer.H)


def test_the_3d_resnet_is_that_of_torchvision(example):
    """By its published size, and the names of a checkpoint."""
    module = example("convert_resnet3d")
    with torch.device("meta"):
        net = module.VideoResNet(64)
    assert sum(p.numel() for p in net.parameters()) == 33_371_472
    names = net.state_dict().keys()
    assert {
        "stem.0.weight",
        "layer1.0.conv1.0.weight",
        "layer2.0.downsample.1.running_mean",
    } <= names
    assert {"layer4.1.conv2.1.num_batches_tracked", "fc.bias"} <= names


def test_conversion_leaves_no_layer_and_no_norm(example, capsys):
    assert example("convert_resnet3d").main(RESNET3D) == 0
    told = capsys.readouterr().out
    assert "20 of 20 convolutions" in told
    assert "0 batch norms are left of 20" in told


def test_the_bytes_of_an_epilogue_are_counted(example, capsys):
    example("own_epilogue").main([])
    told = capsys.readouterr().out
    assert "epilogue  scale:float32 bias:float32 residual:float16 clamp scale\n" in told
    zeros, largest = map(int, re.search(r"(\d+)% are 0, (\d+)% are the largest", told).groups())
    assert zeros > 10  # both ends of the clamp are used
    assert largest > 2
    cells = 2 * 28 * 28 * 64
    assert f"{3 * cells / 1e6:.2f} MB after the sums" in told


@pytest.mark.parametrize(
    ("name", "arguments", "message"),
    [
        ("algebra_tour", ["--output", "tour.png"], "a name that ends in .svg, .html, .htm, .tex"),
        ("gett", ["--output", "gett"], "a name that ends in .svg"),
        ("gett", ["--output", "no/such/gett.svg"], "there is no folder no/such"),
        ("gett", ["--text", "abc"], "two tensors and their product, as 'ak,ck->ac'"),
        ("gett", ["--text", "xk,ck->xc"], "no letter twice in one, got 'xk,ck->xc'"),
        ("gett", ["--text", "aak,ck->ac"], "no letter twice in one, got 'aak"),
        ("convert_resnet3d", ["--width", "0"], "expected an integer >= 1, got '0'"),
        ("convert_resnet3d", ["--frames", "-1"], "expected an integer >= 1, got '-1'"),
        ("im2col_drawn", ["--padding", "-1"], "expected an integer >= 0, got '-1'"),
        ("im2col_drawn", ["--stride", "0"], "expected an integer >= 1, got '0'"),
        ("stream_cloud", ["--edge", "0"], "expected an integer >= 1, got '0'"),
        ("minkunet_segmentation", ["--voxel-size", "nan"], "expected a finite number > 0"),
    ],
)
def test_an_option_that_makes_no_sense_ends_in_a_sentence(
    example, capsys, name, arguments, message
):
    with pytest.raises(SystemExit) as ended:
        example(name).main(arguments)
    assert ended.value.code == 2
    assert message in capsys.readouterr().err
