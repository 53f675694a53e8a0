"""Run real networks of MinkowskiEngine, TorchSparse and FlexGEMM under those names, by layoutconv.

    python benchmarks/check_point_networks.py CHECKOUTS

CHECKOUTS is a folder with the sources of MinkowskiEngine, Mask3D, mmdetection3d, spvnas and
TRELLIS.2, each under its name; nothing of them has to be installed or edited. Their files import
MinkowskiEngine, torchsparse or flex_gemm, and find layoutconv. Those three are not to be had as
wheels, so that there is nothing to compare with; each network is held to laws, in float64:

- gradients are finite, and how many parameters have one is printed;
- another network of the same class that loads its state dict, strictly, computes the same;
- coordinates that are all moved by a multiple of the last stride, below zero, give the same
  features at the coordinates that are moved.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import urllib.request
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, NamedTuple

import torch
from benchmark_options import program
from framework_files import Frameworks, StandIn
from framework_parts import BaseModule, scatter
from torch import Tensor, nn

MOVED = -64  # along every axis; a multiple of the strides of all networks
LIMIT = 1e-7


class Network(NamedTuple):
    """A network: the project and its packages, the library, how it is made and called.

    ``call(net, coords, features)`` takes int32 (rows, 4), the batch first, and returns pairs of
    coordinates like those and features.
    """

    project: str
    name: str
    packages: dict[str, str]
    library: str
    build: Callable[[], nn.Module]
    call: Callable[[Any, Tensor, Tensor], list[tuple[Tensor, Tensor]]]
    moves: bool = True  # whether coordinates may be below zero


# -- MinkowskiEngine's -----------------------------------------------------------------------------


def minkowski(coords: Tensor, features: Tensor) -> Any:
    return import_module("MinkowskiEngine").SparseTensor(features, coords)


def of_minkowski(net: Any, coords: Tensor, features: Tensor) -> list[tuple[Tensor, Tensor]]:
    found = net(minkowski(coords, features))
    found = [*found[1], found[0]] if isinstance(found, tuple) else found
    found = found if isinstance(found, list) else [found]
    return [(x.C, x.F) for x in found]


def made(module: str, name: str, *args: Any, **options: Any) -> Callable[[], Any]:
    return lambda: getattr(import_module(module), name)(*args, **options)


CONFIG = SimpleNamespace(bn_momentum=0.02, conv1_kernel_size=5, dilations=[1, 1, 1, 1])


def detector() -> nn.Module:
    backbone = import_module("mmdet3d.models.backbones.mink_resnet").MinkResNet
    head = import_module("mmdet3d.models.dense_heads.fcaf3d_head").FCAF3DHead
    net: Any = nn.Module()
    net.backbone = backbone(depth=18, in_channels=4, num_stages=4, pool=True)
    net.head = head.__new__(head)
    nn.Module.__init__(net.head)
    net.head.pts_prune_threshold, net.head.voxel_size = 500, 0.01
    net.head._init_layers((64, 128, 256, 512), 32, 6, 5)
    return net


def of_detector(net: Any, coords: Tensor, features: Tensor) -> list[tuple[Tensor, Tensor]]:
    centers, boxes, classes, points = net.head.forward(net.backbone(minkowski(coords, features)))
    found = []
    for level in range(len(points)):
        for image, place in enumerate(points[level]):
            cells = (place / net.head.voxel_size).round().int()
            where = nn.functional.pad(cells, (1, 0), value=image)
            numbers = centers[level][image], boxes[level][image], classes[level][image]
            found.append((where, torch.cat(numbers, 1)))
    return found


def backbone(library: str, module: str = "minkunet_backbone") -> Callable[[], Any]:
    def build() -> Any:
        names = {"minkunet_backbone": "MinkUNetBackbone", "spvcnn_backone": "SPVCNNBackbone"}
        kind = getattr(import_module(f"mmdet3d.models.backbones.{module}"), names[module])
        down, up = [32, 64, 96, 128], [128, 96, 64, 64]  # lists that it writes to
        channels = {"encoder_channels": down, "decoder_channels": up}
        return kind(4, sparseconv_backend=library, **channels)

    return build


def of_backbone(net: Any, coords: Tensor, features: Tensor) -> list[tuple[Tensor, Tensor]]:
    return [(coords, net(features, coords))]


# -- TorchSparse's ---------------------------------------------------------------------------------


def of_old_backbone(net: Any, coords: Tensor, features: Tensor) -> list[tuple[Tensor, Tensor]]:
    return [(coords, net(features, coords.roll(-1, 1).contiguous()))]


def of_torchsparse(net: Any, coords: Tensor, features: Tensor) -> list[tuple[Tensor, Tensor]]:
    return [(coords, net(import_module("torchsparse").SparseTensor(features, coords)))]


def spvnas(name: str, **options: Any) -> Callable[[], Any]:
    return made(f"core.models.semantic_kitti.{name.lower()}", name, num_classes=19, **options)


# -- FlexGEMM's ------------------------------------------------------------------------------------


class Convolutions(nn.Module):
    """TRELLIS.2's convolutions, whose functions take a module as ``self``."""

    def __init__(self) -> None:
        super().__init__()
        self.made = import_module("trellis2.modules.sparse.conv.conv_flex_gemm")
        self.layers = nn.ModuleList([nn.Module(), nn.Module()])
        for layer, ends in zip(self.layers, ((4, 16), (16, 8)), strict=True):
            self.made.sparse_conv3d_init(layer, *ends, 3)

    def forward(self, x: Any) -> Any:
        for layer in self.layers:
            x = self.made.sparse_conv3d_forward(layer, x)
        return x


class Voxels(SimpleNamespace):
    """The interface that TRELLIS.2's convolutions ask of their tensor."""

    def get_spatial_cache(self, key: str) -> Any:
        return self.cache.get(key)

    def register_spatial_cache(self, key: str, value: Any) -> None:
        self.cache[key] = value

    def replace(self, feats: Tensor) -> Voxels:
        return Voxels(**{**vars(self), "feats": feats})


def of_trellis(net: Any, coords: Tensor, features: Tensor) -> list[tuple[Tensor, Tensor]]:
    shape = torch.Size([2, 4])
    x = Voxels(feats=features, coords=coords, shape=shape, spatial_shape=(64,) * 3, cache={})
    return [(coords, net(x).feats)]


NETWORKS = [
    Network("MinkowskiEngine", "MinkUNet34C", {"examples": "MinkowskiEngine/examples"},
            "MinkowskiEngine", made("examples.minkunet", "MinkUNet34C", 4, 20, D=3), of_minkowski),
    Network("MinkowskiEngine", "ResNet14", {"examples": "MinkowskiEngine/examples"},
            "MinkowskiEngine", made("examples.resnet", "ResNet14", 4, 10, D=3), of_minkowski),
    Network("Mask3D", "Res16UNet34C", {"models": "Mask3D/models"}, "MinkowskiEngine",
            made("models.res16unet", "Res16UNet34C", 4, 20, CONFIG, out_fpn=True), of_minkowski),
    Network("Mask3D", "Custom30M", {"models": "Mask3D/models"}, "MinkowskiEngine",
            made("models.res16unet", "Custom30M", 4, 20, CONFIG, out_fpn=True), of_minkowski),
    Network("mmdetection3d", "MinkResNet and FCAF3DHead", {"mmdet3d": "mmdetection3d/mmdet3d"},
            "MinkowskiEngine", detector, of_detector),
    Network("mmdetection3d", "MinkUNetBackbone (minkowski)", {"mmdet3d": "mmdetection3d/mmdet3d"},
            "MinkowskiEngine", backbone("minkowski"), of_backbone),
    Network("mmdetection3d", "MinkUNetBackbone (torchsparse)", {"mmdet3d": "mmdetection3d/mmdet3d"},
            "torchsparse 1.4", backbone("torchsparse"), of_old_backbone),
    Network("mmdetection3d", "SPVCNNBackbone", {"mmdet3d": "mmdetection3d/mmdet3d"},
            "torchsparse 1.4",
            backbone("torchsparse", "spvcnn_backone"), of_old_backbone),
    Network("spvnas", "MinkUNet", {"core": "spvnas/core"}, "torchsparse 2.1",
            spvnas("MinkUNet"), of_torchsparse),
    Network("spvnas", "SPVCNN", {"core": "spvnas/core"}, "torchsparse 2.1",
            spvnas("SPVCNN", pres=1.0, vres=1.0), of_torchsparse),
    Network("TRELLIS.2", "SparseConv3d", {"trellis2": "TRELLIS.2/trellis2"}, "flex_gemm",
            Convolutions, of_trellis, False),
]  # fmt: skip


# -- what files import beside ----------------------------------------------------------------------


class Registry:
    """``mmengine.registry.MODELS``, by names."""

    def __init__(self) -> None:
        self.kinds: dict[str, Any] = {}

    def _register_module(self, kind: Any, name: str) -> None:
        self.kinds[name] = kind

    def register_module(self, *names: Any, **options: Any) -> Callable[[Any], Any]:
        return lambda kind: kind

    def build(self, config: dict[str, Any], *args: Any, **options: Any) -> Any:
        of = dict(config)
        return self.kinds[of.pop("type")](*args, **options, **of)


class Part(ModuleType):
    """A module of which some names are written out, and others stand-ins."""

    def __init__(self, name: str, names: dict[str, Any]) -> None:
        super().__init__(name)
        self.__dict__.update(names)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return StandIn()


def parts() -> dict[str, ModuleType]:
    models = Registry()

    def norm(config: dict[str, Any], channels: int) -> tuple[str, Any]:
        return "bn", models.build(config, channels)

    blocks: dict[str, Any] = {"build_conv_layer": models.build, "build_norm_layer": norm}
    blocks.update({"build_activation_layer": models.build, "Scale": Scale})
    probability = {"bias_init_with_prob": lambda prior: -2.0}
    written: dict[str, dict[str, Any]] = {
        "mmengine.registry": {"MODELS": models},
        "mmengine.model": {"BaseModule": BaseModule, **probability},
        "mmcv.cnn": blocks,
        "torch_scatter": {"scatter_mean": scatter_mean},
    }
    return {name: Part(name, names) for name, names in written.items()}


class Scale(nn.Module):
    """``mmcv.cnn.Scale``."""

    def __init__(self, scale: float = 1.0) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(scale))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.scale


def scatter_mean(src: Tensor, index: Tensor, dim: int = 0) -> Tensor:
    return scatter(src, index, dim, reduce="mean").clone()  # a dropout writes to it


# -- the laws --------------------------------------------------------------------------------------


def scene() -> tuple[Tensor, Tensor]:
    """Two rooms' corners of voxels, and features."""
    random = torch.Generator().manual_seed(0)
    spots = torch.randint(0, 32, (3, 500, 2), generator=random)
    walls = []
    for axis, plane in enumerate(spots):
        walls.append(torch.cat([plane[:, :axis], plane[:, :1] // 16, plane[:, axis:]], 1)[:, :3])
    cells = torch.unique(torch.cat(walls), dim=0)
    both = [nn.functional.pad(cells[k::2], (1, 0), value=k) for k in (0, 1)]
    coords = torch.cat(both).int()
    return coords, torch.randn(len(coords), 4, dtype=torch.float64, generator=random)


def by_place(found: list[tuple[Tensor, Tensor]]) -> list[Tensor]:
    """Features in the order of their coordinates."""
    rows = []
    for coords, features in found:
        order = torch.unique(coords, dim=0, return_inverse=True)[1].argsort()
        rows.append(features[order])
    return rows


def check(network: Network) -> str:
    """Hold a network to the laws; what it says."""
    torch.manual_seed(0)
    coords, features = scene()
    net = network.build().double()
    found = network.call(net, coords, features)
    torch.stack([(y * torch.randn_like(y)).sum() for _, y in found]).sum().backward()
    used = [p.grad for p in net.parameters() if p.grad is not None]
    assert all(torch.isfinite(grad).all() for grad in used), "a gradient is not finite"
    count = len(list(net.parameters()))
    net.eval()
    again = network.build().double().eval()
    again.load_state_dict(net.state_dict())
    with torch.no_grad():
        first = by_place(network.call(net, coords, features))
        second = by_place(network.call(again, coords, features))
        assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True)), "another state"
        error = 0.0
        if network.moves:
            moved = coords + torch.tensor([0, MOVED, MOVED, MOVED], dtype=torch.int32)
            third = by_place(network.call(net, moved, features))
            for a, b in zip(first, third, strict=True):
                error = max(error, float((a - b).abs().max() / a.abs().max().clamp(min=1e-30)))
    assert error < LIMIT, f"moved coordinates give other features, by {error:.1e}"
    rows = ", ".join(f"{len(y)} x {y.shape[1]}" for _, y in found[-1:])
    return f"{len(used)} of {count} parameters have a gradient | {error:.0e} | {rows}"


def one(number: int, checkouts: Path) -> None:
    """Run one network in this process."""
    torch.set_num_threads(1)
    network = NETWORKS[number]
    library, *version = network.library.split()
    import_module(f"layoutconv.compat.{library}").install(*version)
    packages = {name: [checkouts / place] for name, place in network.packages.items()}
    for folders in packages.values():
        sys.path.append(str(folders[0]))  # examples import each other by their names alone
    Frameworks(packages, parts()).install()
    urllib.request.urlretrieve = lambda *args, **options: None  # type: ignore[assignment]
    print(f"| {network.project} | {network.name} | {network.library} | {check(network)} |")


def main() -> None:
    parser = program(__doc__)
    parser.add_argument("checkouts", type=Path, help="the folder of the projects' sources")
    parser.add_argument("--only", default="", help="networks with this in their name")
    parser.add_argument("--number", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.number is not None:
        one(options.number, options.checkouts)
        return
    print("| project | network | names of | | moved by | results |")
    print("| --- | --- | --- | --- | --- | --- |", flush=True)
    failed = 0
    for number, network in enumerate(NETWORKS):
        if options.only.lower() in network.name.lower():
            command = [sys.executable, __file__, str(options.checkouts), "--number", str(number)]
            failed += subprocess.run(command, check=False).returncode != 0
    raise SystemExit(failed)


if __name__ == "__main__":
    main()
