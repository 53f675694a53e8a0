"""Modules of sparse convolutions, and torch's modules between them."""

from __future__ import annotations

import os
import pickle
from concurrent.futures import ThreadPoolExecutor
from copy import deepcopy
from inspect import signature

import numpy as np
import pytest
import torch

import layoutconv as lc
from layoutconv.errors import ArgumentError, ArgumentTypeError
from layoutconv.sparse import strided_map, submanifold_map, transposed_map

from ..warm_process import run_python
from .clouds import cloud, numbers

KINDS = ("SubmConv", "SparseConv", "SparseConvTranspose", "SparseInverseConv")
NAMES = [f"{kind}{rank}d" for kind in KINDS for rank in (1, 2, 3, 4)]
OPTIONS = {
    "SubmConv": {"dilation": 2},
    "SparseConv": {"stride": 2, "padding": 1},
    "SparseConvTranspose": {"stride": 2, "padding": 1, "output_padding": 1},
    "SparseInverseConv": {},
}
FUNCTIONS = {
    "SubmConv": lc.subm_conv,
    "SparseConv": lc.sparse_conv,
    "SparseConvTranspose": lc.sparse_conv_transpose,
    "SparseInverseConv": lc.sparse_inverse_conv,
}


def made(name: str, **more):
    module = getattr(lc.nn, name)
    return module(4, 6, 3, **OPTIONS[name[:-2]], dtype=torch.float64, **more)


def input_of(name: str):
    rank = int(name[-2])
    x = cloud(rank, 4, share=0.1)
    if "Inverse" in name:
        x = lc.sparse_conv(x, numbers(4, *[3] * rank, 4), stride=2, padding=1)
    return x


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("groups", [1, 2])
def test_a_module_is_its_function(name, groups):
    module, x = made(name, groups=groups, activation="leaky_relu", slope=0.2), input_of(name)
    f = x.features.clone().requires_grad_()
    function, options = FUNCTIONS[name[:-2]], OPTIONS[name[:-2]]
    tensors = f, module.weight, module.bias
    copies = deepcopy(module), pickle.loads(pickle.dumps(module))
    theirs = function(
        x.replace(f), *tensors[1:], groups=groups, activation="leaky_relu", slope=0.2, **options
    )
    y = module(x.replace(f))
    assert y.coordinates is theirs.coordinates
    assert torch.equal(y.features, theirs.features)
    gradients = [torch.autograd.grad(t.features.square().sum(), tensors) for t in (y, theirs)]
    assert all(torch.equal(p, q) for p, q in zip(*gradients, strict=True))
    r = numbers(*y.features.shape)
    expected = torch.nn.functional.leaky_relu(
        function(x, *tensors[1:], groups=groups, **options).features + r, 0.2
    )
    torch.testing.assert_close(module(x, residual=y.replace(r)).features, expected)
    for copy in copies:
        assert torch.equal(copy(x).features, y.features)
        assert repr(copy) == repr(module)
    other = made(name, groups=groups, activation="leaky_relu", slope=0.2)
    assert not torch.equal(other(x).features, y.features)
    other.load_state_dict(module.state_dict())
    assert torch.equal(other(x).features, y.features)


@pytest.mark.parametrize("name", [name for name in NAMES if name[-2] != "4"])
def test_the_words_of_torch_in_its_order(name):
    kind = "ConvTranspose" if "Transpose" in name else "Conv"
    theirs = signature(getattr(torch.nn, f"{kind}{name[-2:]}")).parameters
    ours = signature(getattr(lc.nn, name)).parameters
    shared = [word for word in ours if word in theirs]
    assert shared == [word for word in theirs if word in ours]
    for word in set(shared) - {"kernel_size"}:
        assert ours[word].default == theirs[word].default
    missing = {"padding_mode"}
    missing |= {"stride", "padding"} if kind == "Conv" and "SparseConv" not in name else set()
    missing |= {"dilation"} if "Inverse" in name else set()
    assert set(theirs) - set(ours) == missing
    assert set(ours) - set(theirs) == {"activation", "slope"} | (
        {"offsets"} if "Subm" in name else set()
    )


def test_weights_start_as_those_of_torch():
    theirs = torch.nn.Conv3d(64, 96, 3, groups=2)
    ours = lc.nn.SubmConv3d(64, 96, 3, groups=2)
    assert ours.weight.shape == theirs.weight.movedim(1, -1).shape
    for mine, other in ((ours.weight, theirs.weight), (ours.bias, theirs.bias)):
        bound = 1 / (32 * 27) ** 0.5
        assert 0.9 * bound < mine.abs().max() <= bound
        assert mine.std().item() == pytest.approx(other.std().item(), rel=0.2)


def test_text():
    texts = {
        "SubmConv2d(4, 6, kernel_size=(3, 3), dilation=(2, 2))": made("SubmConv2d"),
        "SparseConv1d(4, 6, kernel_size=(3,), stride=(2,), padding=(1,), groups=2, bias=False)": (
            made("SparseConv1d", groups=2, bias=False)
        ),
        "SparseConvTranspose2d(4, 6, kernel_size=(3, 3), stride=(2, 2), padding=(1, 1), "
        "output_padding=(1, 1))": made("SparseConvTranspose2d"),
        "SparseConv1d(1, 1, kernel_size=(3,), stride=(1,), padding=((2, 0),))": (
            lc.nn.SparseConv1d(1, 1, 3, padding=((2, 0),))
        ),
        "SubmConv1d(1, 2, kernel_size=(2,), offsets=((0,), (5,)), activation=relu)": (
            lc.nn.SubmConv1d(1, 2, offsets=[(0,), (5,)], activation="relu")
        ),
    }
    assert [repr(module) for module in texts.values()] == list(texts)


@pytest.mark.parametrize(
    ("name", "call"),
    [
        ("in_channels", lambda: lc.nn.SubmConv2d(0, 4, 3)),
        ("out_channels", lambda: lc.nn.SubmConv2d(4, 5, 3, groups=2)),
        ("groups", lambda: lc.nn.SubmConv2d(4, 4, 3, groups=0)),
        ("kernel_size", lambda: lc.nn.SubmConv2d(4, 4, (3, 3, 3))),
        ("kernel_size", lambda: lc.nn.SubmConv2d(4, 4)),
        ("kernel_size", lambda: lc.nn.SubmConv2d(4, 4, 3, offsets=[(0, 0)])),
        ("dilation", lambda: lc.nn.SubmConv2d(4, 4, offsets=[(0, 0)], dilation=2)),
        ("stride", lambda: lc.nn.SparseConv2d(4, 4, 3, 0)),
        ("padding", lambda: lc.nn.SparseConv2d(4, 4, 3, 1, -1)),
        ("output_padding", lambda: lc.nn.SparseConvTranspose2d(4, 4, 3, 1, 1, -1)),
        ("activation", lambda: lc.nn.SparseInverseConv2d(4, 4, 3, activation="swish")),
        ("slope", lambda: lc.nn.SubmConv2d(4, 4, 3, slope="a")),
        ("module", lambda: lc.nn.Features(torch.relu)),
        ("module", lambda: lc.nn.fold_batch_norms(None)),
        ("input", lambda: lc.nn.SubmConv2d(4, 4, 3)(cloud(3, 4))),
        ("input", lambda: lc.nn.SubmConv2d(4, 4, 3)(torch.ones(3, 4))),
    ],
)
def test_errors_name_the_argument(name, call):
    with pytest.raises(ArgumentError, match=f"argument `{name}`: expected "):
        call()


def test_a_map_and_cells_of_the_user():
    x, module = cloud(2, 4), made("SparseConv2d")
    found = strided_map(x.coordinates, 3, 1, 1)
    y = module(x, kernel_map=found)
    assert y.coordinates is found.outputs
    z = module(x, outputs=x.coordinates)
    assert z.coordinates is x.coordinates
    for name, given in (
        ("SubmConv2d", submanifold_map(x.coordinates, 3, 2)),
        ("SparseConv2d", strided_map(x.coordinates, 3, 2, 1)),
        ("SparseConvTranspose2d", transposed_map(x.coordinates, 3, 2, 1, 1)),
    ):
        module = made(name)  # its own sizes are not those of a map that is given
        assert torch.equal(module(x, kernel_map=given).features, module(x).features)


class Residual(torch.nn.Module):
    """A module as a user writes it: it takes a sparse tensor, and returns one."""

    def __init__(self):
        super().__init__()
        self.conv = lc.nn.SubmConv2d(6, 6, 3, dtype=torch.float64)

    def forward(self, x):
        return self.conv(x, residual=x)


def network(sequential=lc.nn.Sequential):
    double = {"dtype": torch.float64}
    net = sequential(
        lc.nn.SubmConv2d(4, 6, 3, bias=False, **double),
        torch.nn.BatchNorm1d(6, **double),
        torch.nn.Sequential(torch.nn.ReLU(), torch.nn.Linear(6, 6, **double)),
        Residual(),
        lc.nn.SparseConv2d(6, 8, 2, 2, **double),
        torch.nn.LayerNorm(8, **double),
        torch.nn.GELU(),
        lc.nn.SparseInverseConv2d(8, 6, 2, **double),
        lc.nn.Features(torch.nn.BatchNorm1d(6, **double)),
        torch.nn.LeakyReLU(0.3),
    )
    generator = torch.Generator().manual_seed(0)
    for part in net.modules():
        if isinstance(part, torch.nn.BatchNorm1d):
            for tensor in (part.weight.data, part.bias.data, part.running_mean, part.running_var):
                tensor.uniform_(0.5, 1.5, generator=generator)
    return net


def test_torchs_modules_see_features():
    net, x = network().eval(), cloud(2, 4)
    y = x
    for module in net:
        if type(module).__module__.startswith("torch.nn"):
            y = y.replace(module(y.features))
        else:
            y = module(y)
    assert torch.equal(net(x).features, y.features)
    assert y.coordinates is x.coordinates
    assert torch.equal(net[1:3](x.replace(numbers(len(x), 6))).features, net[2](
        net[1](numbers(len(x), 6))
    ))  # fmt: skip
    assert torch.equal(net[1](x.features[:, :1].expand(-1, 6)), lc.nn.Sequential(net[1])(
        x.features[:, :1].expand(-1, 6)
    ))  # fmt: skip


def test_joined_and_repeated_sequences_pass_features_on():
    x, layers = cloud(2, 4), (lc.nn.SubmConv2d(4, 4, 3), torch.nn.ReLU())
    first = lc.nn.Sequential(*layers).double()
    second, expected = lc.nn.Sequential(torch.nn.BatchNorm1d(4)).double().eval(), first(x)
    for net in (first + second, first + torch.nn.Sequential(*second)):
        assert torch.equal(net(x).features, second(expected).features)
        assert [*net.parameters()] == [*first.parameters(), *second.parameters()]
    for net in (first * 2, 2 * first):
        assert torch.equal(net(x).features, first(expected).features)
    first += second
    assert type(first) is lc.nn.Sequential
    assert len(first) == 3


def test_a_module_of_features_is_shown_its_wrapper():
    class Own(torch.nn.Module):
        def forward(self, features):
            return torch.relu(features)

    x = cloud(2, 4)
    with pytest.raises(TypeError, match=r"your own of features in lc\.nn\.Features"):
        lc.nn.Sequential(Own())(x)
    assert torch.equal(lc.nn.Sequential(lc.nn.Features(Own()))(x).features, x.features.relu())


@pytest.mark.parametrize("kind", ["", "momentum", "untracked", "plain", "hooked", "features"])
def test_batch_norms_count_the_cells_of_a_padded_tensor(kind):
    options = {"momentum": None} if kind == "momentum" else {}
    norm = torch.nn.BatchNorm1d(6, affine=kind != "plain", **options, dtype=torch.float64)
    if kind == "untracked":
        norm = torch.nn.BatchNorm1d(6, track_running_stats=False, dtype=torch.float64).eval()
    seen = []
    if kind == "hooked":
        norm.register_forward_hook(lambda module, inputs, output: seen.append(inputs[0]))
    linear = torch.nn.Linear(5, 6, dtype=torch.float64)
    inner = torch.nn.Sequential(linear, norm)
    net = lc.nn.Sequential(
        lc.nn.Features(inner) if kind == "features" else inner,
        torch.nn.BatchNorm1d(6, dtype=torch.float64),
    )
    twin = deepcopy(net)
    for seed in (1, 2):
        x = cloud(2, 5, seed=seed)
        padded = x.padded(len(x) + 7)
        wild = padded.features.clone()
        wild[len(x) :] = 1e6
        wild.requires_grad_(), x.features.requires_grad_()
        got, want = net(padded.replace(wild)), twin(x)
        assert len(got) == len(x) + 7
        assert (got.features[len(x) :] == 0).all()
        torch.testing.assert_close(got.features[: len(x)], want.features)
        scale = numbers(x.features.shape[0], 6)
        (got.features[: len(x)] * scale).sum().backward()
        (want.features * scale).sum().backward()
        torch.testing.assert_close(wild.grad[: len(x)], x.features.grad)
        assert not wild.grad[len(x) :].any()
    for mine, torchs in zip(net.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(mine.grad, torchs.grad)
    assert net.state_dict().keys() == twin.state_dict().keys()
    for name, value in net.state_dict().items():
        torch.testing.assert_close(value, twin.state_dict()[name], msg=name)
    of_net, of_twin = (list(map(len, seen[i::2])) for i in (0, 1))
    assert of_net == of_twin
    assert len(seen) == (4 if kind == "hooked" else 0)


def test_a_batch_norm_of_padding_alone_remembers_nothing():
    norm = torch.nn.BatchNorm1d(3)
    x = lc.SparseTensor.from_dense(torch.zeros(1, 4, 3)).padded(5)
    assert not lc.nn.Sequential(norm)(x).features.any()
    assert not norm.running_mean.any()
    assert (norm.running_var == 1).all()


def test_batch_norms_become_synchronized():
    net = torch.nn.SyncBatchNorm.convert_sync_batchnorm(network())
    kinds = [type(part) for part in net.modules()]
    assert kinds.count(torch.nn.SyncBatchNorm) == 2
    x = cloud(2, 4)
    assert torch.equal(net.eval()(x).features, network_like(net)(x).features)


def network_like(net):
    other = network().eval()
    other.load_state_dict(net.state_dict())
    return other


def test_folded_batch_norms():
    net, x = network().eval(), cloud(2, 4)
    expected, names = net(x).features.detach(), [name for name, _ in net.named_children()]
    parts = list(net)
    assert lc.nn.fold_batch_norms(net) is net
    torch.testing.assert_close(net(x).features, expected)
    assert [name for name, _ in net.named_children()] == names
    assert all(p is q for p, q in zip(net[2:8], parts[2:8], strict=True))
    assert type(net[1]) is type(net[8]) is type(net[9]) is torch.nn.Identity
    assert net[0].activation is None  # its relu is in a Sequential of its own
    assert (net[7].activation, net[7].slope) == ("leaky_relu", 0.3)
    assert net[0].bias is not None


@pytest.mark.parametrize("kind", KINDS)
def test_another_number_of_channels_is_told_of_the_input(kind):
    x = lc.sparse_conv(cloud(3, 4), numbers(5, 3, 3, 3, 4), stride=2, padding=1)
    layer = made(f"{kind}3d")
    expected = rf"`input`: expected 4 channels, as {kind}3d has, got features \({len(x)}, 5\)"
    with pytest.raises(ArgumentError, match=expected):
        layer(x)


@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("kind", ["Conv", "ConvTranspose"])
@pytest.mark.parametrize("rank", [1, 2, 3])
def test_folded_batch_norms_of_dense_convolutions(kind, rank, groups):
    net = torch.nn.Sequential(
        getattr(lc.nn, f"{kind}{rank}d")(4, 6, 3, groups=groups, bias=rank > 1),
        getattr(torch.nn, f"BatchNorm{rank}d")(6, affine=rank != 2),
        torch.nn.SiLU(),
        torch.nn.ReLU(),
    ).double()
    x = torch.randn(3, 4, *[5] * rank, dtype=torch.float64)
    net(x)  # running statistics
    net.eval()
    expected = net(x)
    lc.nn.fold_batch_norms(net)
    torch.testing.assert_close(net(x), expected)
    assert net[0].weight.movedim(1, -1).is_contiguous()
    assert [type(part) for part in net[1:]] == [*[torch.nn.Identity] * 2, torch.nn.ReLU]


def test_what_is_not_folded():
    conv = lc.nn.Conv2d(4, 4, 3, padding=1)
    norms = [torch.nn.BatchNorm2d(4) for _ in range(2)]
    shared = torch.nn.Sequential(conv, norms[0], conv, norms[1])
    hooked = torch.nn.Sequential(lc.nn.Conv2d(4, 4, 3), torch.nn.BatchNorm2d(4))
    hooked[0].register_forward_hook(lambda *_: None)
    current = torch.nn.Sequential(
        lc.nn.Conv2d(4, 4, 3), torch.nn.BatchNorm2d(4, track_running_stats=False)
    )
    weighted = torch.nn.Sequential(
        torch.nn.utils.parametrizations.weight_norm(lc.nn.Conv2d(4, 4, 3)), torch.nn.ReLU()
    )
    net = torch.nn.ModuleList([shared, hooked, current, weighted])
    with pytest.raises(ArgumentError, match="`module`: expected a module in evaluation mode"):
        lc.nn.fold_batch_norms(net)
    before = repr(net)
    assert repr(lc.nn.fold_batch_norms(net.eval())) == before


WORKER = """
import sys, torch
import torch.distributed as dist
from tests.nn.clouds import cloud
from tests.nn.test_sparse_modules import network
from layoutconv.sparse import SparseTensor

rank, file = int(sys.argv[1]), sys.argv[2]
torch.set_num_threads(1)
dist.init_process_group("gloo", init_method=f"file://{file}", rank=rank, world_size=2)
torch.manual_seed(0)
net = network().eval()  # statistics of one process are those of all
wrapped = torch.nn.parallel.DistributedDataParallel(net)
own = cloud(2, 4)
here = own.coords[:, 0] == rank
x = SparseTensor(own.features[here], own.coords[here] * torch.tensor([0, 1, 1]).int(), (9, 11), 1)
for _ in range(2):
    wrapped.zero_grad()
    wrapped(x).features.square().sum().backward()
if rank == 0:
    torch.manual_seed(0)
    alone = network().eval()
    alone(own).features.square().sum().backward()
    for p, q in zip(net.parameters(), alone.parameters(), strict=True):
        torch.testing.assert_close(2 * p.grad, q.grad)
    print("equal")
del wrapped, net  # a reducer that goes last waits for threads that want what it keeps
dist.barrier()
dist.destroy_process_group()
"""


def test_two_processes_have_the_gradients_of_one(tmp_path):
    if not torch.distributed.is_available():
        pytest.skip("torch without distributed")
    root = os.path.abspath(os.path.join(os.path.dirname(__file__), *[os.pardir] * 2))
    paths = [root, *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "OMP_NUM_THREADS": "1"}
    store = str(tmp_path / "store")

    def rank(number):
        return run_python(["-c", WORKER, str(number), store], root, environment)

    with ThreadPoolExecutor(2) as both:
        found = list(both.map(rank, range(2)))
    assert [ran.returncode for ran in found] == [0, 0], found
    assert found[0].stdout.strip() == "equal"


@pytest.mark.parametrize(
    "module",
    [
        torch.nn.MaxPool1d(2), torch.nn.AdaptiveAvgPool1d(1), torch.nn.ConstantPad1d(1, 0.0),
        torch.nn.Conv3d(4, 4, 1), torch.nn.BatchNorm3d(4), torch.nn.Dropout1d(),
        torch.nn.TransformerEncoderLayer(4, 2), torch.nn.Sequential(torch.nn.LPPool1d(2, 2)),
    ],
    ids=lambda module: type(module).__name__,
)  # fmt: skip
def test_modules_over_grids_take_no_rows_for_one(module):
    """Some make rows as long of rows (voxels, C), and pool channels or mix images."""
    x = cloud(2, 4)
    with pytest.raises(ArgumentTypeError, match=r"`input`: expected a dense tensor for torch's"):
        lc.nn.Sequential(module)(x)
    dense = torch.randn(2, 4, 4, 4, 4) if hasattr(module, "running_mean") else None
    if dense is not None:  # among modules of dense tensors they are what they were
        assert torch.equal(lc.nn.Sequential(module)(dense), module(dense))
    if not isinstance(module, torch.nn.MaxPool1d):
        return
    assert lc.nn.Features(module)(x).features.shape == (len(x), 2)  # where somebody means that


def test_sizes_may_be_numbers_of_numpy():
    size, two, channels = np.int64(3), np.int32(2), np.int16(4)
    layer = lc.nn.SparseConv3d(channels, np.int64(6), size, two, padding=np.uint8(1), groups=two)
    plain = lc.nn.SparseConv3d(4, 6, 3, 2, padding=1, groups=2)
    assert repr(layer) == repr(plain)
    assert {type(n) for n in (layer.in_channels, layer.groups, *layer.kernel_size)} == {int}
    layer.load_state_dict(plain.state_dict())
    x = lc.SparseTensor.from_dense(torch.ones(1, 4, 4, 4, 4))
    assert torch.equal(layer(x).features, plain(x).features)
    lc.nn.SubmConv3d(4, 4, 1), lc.nn.SubmConv3d(4, 4, 2)  # which equal True and 2.0, and are kept
    for wrong in (
        2.0,
        True,
        (2.0, 2, 2),
        (1, True, 1),
        "2",
        np.float64(2),
        np.bool_(True),
        torch.tensor(2),
    ):
        with pytest.raises(ArgumentError, match="`kernel_size`: expected an integer >= 1, or 3"):
            lc.nn.SubmConv3d(4, 4, wrong)
        with pytest.raises(ArgumentError, match="`in_channels`: expected an int >= 1"):
            lc.nn.SubmConv3d(wrong, 4, 3)
