"""Networks of twelve projects that are written for spconv: how each is built, and what it is given.

Their files are not here: ``FOLDERS`` says which checkouts they come from. A network is a function
of a seeded cloud that returns the module, and another that runs it.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from layoutconv.compat.attributes import Attributes

#: Packages by project, and the folders of its checkout that they are in; what a project does not
#: have of one, it takes from the other that it is built on.
FOLDERS: dict[str, dict[str, list[str]]] = {
    "OpenPCDet": {"pcdet": ["OpenPCDet/pcdet"]},
    "mmdetection3d": {
        "mmdet3d": ["mmdetection3d/mmdet3d"],
        "projects": ["mmdetection3d/projects"],
    },
    "Pointcept": {"pointcept": ["Pointcept/pointcept"]},
    "CenterPoint": {"det3d": ["CenterPoint/det3d"]},
    "VoxelNeXt": {"pcdet": ["VoxelNeXt/pcdet"]},
    "FocalsConv": {
        "pcdet": ["FocalsConv/OpenPCDet/pcdet"],
        "det3d": ["FocalsConv/CenterPoint/det3d"],
    },
    "LargeKernel3D": {
        "pcdet": ["LargeKernel3D/object-detection/pcdet", "OpenPCDet/pcdet"],
        "det3d": ["LargeKernel3D/object-detection/det3d", "CenterPoint/det3d"],
        "segmentation": ["LargeKernel3D/semantic-segmentation"],
    },
    "SoftGroup": {"softgroup": ["SoftGroup/softgroup"]},
    "SPFormer": {"spformer": ["SPFormer/spformer"]},
    "oneformer3d": {"oneformer3d": ["oneformer3d/oneformer3d"]},
    "ISBNet": {"isbnet": ["ISBNet/isbnet"]},
    "2DPASS": {"network": ["2DPASS/network"]},
}


class Scene(NamedTuple):
    """Voxels of two images: features (rows, C), cells int32 (rows, 1 + rank), extents (z, y, x)."""

    features: Tensor
    cells: Tensor
    shape: tuple[int, ...]

    @property
    def grid_size(self) -> Any:
        """(x, y, z), as detectors have it: they add a layer on top, but to pillars."""
        x, y, *z = self.shape[::-1]
        return np.array([x, y, *(extent - 1 for extent in z or [2])])

    @property
    def images(self) -> int:
        return 2

    def of_points(self) -> dict[str, Tensor]:
        """The same for Pointcept."""
        offset = self.cells[:, 0].bincount().cumsum(0)
        coord = self.cells[:, 1:].long()
        return {"grid_coord": coord, "feat": self.features, "offset": offset}


class Network(NamedTuple):
    """A network of a project.

    Attributes:
        project, name: the folder of a checkout, and the class, or what is special about it.
        scene: the cloud of a seed that it is given.
        build: makes the module.
        call: what it computes of a scene.
        trains: whether batch norms take the statistics of the scene; not where a file wants labels
            in training, or writes filters in the layout of spconv 1.x.
    """

    project: str
    name: str
    scene: Callable[[int], Scene]
    build: Callable[[Scene], nn.Module]
    call: Callable[[Any, Scene], Any]
    trains: bool = True


def street(channels: int, shape: tuple[int, ...] = (41, 64, 72), seed: int = 0) -> Scene:
    """Ground, walls and boxes, cut into voxels; rows image by image, in no order within one."""
    random = torch.Generator().manual_seed(seed)
    clouds = []
    for image in range(2):
        extents = torch.tensor(shape)
        flat = torch.rand(300, len(shape), generator=random)
        if len(shape) == 3:
            flat[:200, 0] = 0.15 + 0.1 * flat[:200, 1] * flat[:200, 2]
            flat[200:250, 1] = 0.5
        cells = (flat * extents).long()
        cells = cells[torch.rand(len(cells), generator=random) < 0.9 - 0.2 * image]
        cells = cells.unique(dim=0)
        cells = cells[torch.randperm(len(cells), generator=random)]
        batch = torch.full((len(cells), 1), image)
        clouds.append(torch.cat([batch, cells], dim=1))
    cells = torch.cat(clouds).int()
    return Scene(torch.randn(len(cells), channels, generator=random), cells, shape)


# -- OpenPCDet, and what is built on it ------------------------------------------------------------


def pcdet(module: str, name: str, config: dict[str, Any], **more: Any) -> Callable[[Scene], Any]:
    def build(scene: Scene) -> Any:
        made = getattr(import_module(f"pcdet.models.{module}"), name)
        return made(Attributes(config), scene.features.shape[1], scene.grid_size, **more)

    return build


def of_voxels(net: Any, scene: Scene) -> Any:
    batch = {
        "voxel_features": scene.features,
        "voxel_coords": scene.cells,
        "pillar_features": scene.features,
        "pillar_coords": scene.cells,
        "batch_size": scene.images,
    }
    given = set(batch)
    found = net(batch)
    return [value for key, value in found.items() if key not in given and key != "point_coords"]


PLACE = {"voxel_size": [0.1, 0.1, 0.1], "point_cloud_range": [0.0, 0.0, 0.0, 7.2, 6.4, 4.0]}
HEAD = {
    "CLASS_NAMES_EACH_HEAD": [["car", "bus"], ["pedestrian"]],
    "TARGET_ASSIGNER_CONFIG": Attributes(FEATURE_MAP_STRIDE=8),
    "SHARED_CONV_CHANNEL": 32,
    "NUM_HM_CONV": 2,
    "SEPARATE_HEAD_CFG": Attributes(
        HEAD_DICT={
            "center": {"out_channels": 2, "num_conv": 2},
            "dim": {"out_channels": 3, "num_conv": 2},
            "rot": {"out_channels": 2, "num_conv": 2},
        }
    ),
}


def head(scene: Scene) -> Any:
    made = import_module("pcdet.models.dense_heads.voxelnext_head").VoxelNeXtHead
    names = ["car", "bus", "pedestrian"]
    return made(
        Attributes(HEAD), 32, 3, names, scene.grid_size, PLACE["point_cloud_range"], [0.1] * 3
    )


def of_heads(net: Any, scene: Scene) -> Any:
    x = sparse(scene)
    return [one(x) for one in net.heads_list]


def sparse(scene: Scene) -> Any:
    spconv = import_module("spconv.pytorch")
    return spconv.SparseConvTensor(scene.features, scene.cells, list(scene.shape), scene.images)


# -- mmdetection3d ---------------------------------------------------------------------------------


def mmdet3d(module: str, name: str, **options: Any) -> Callable[[Scene], Any]:
    def build(scene: Scene) -> Any:
        made = getattr(import_module(module), name)
        return made(scene.features.shape[1], list(scene.shape), **options)

    return build


def of_encoder(net: Any, scene: Scene) -> Any:
    return net(scene.features, scene.cells, scene.images)


def minkunet(scene: Scene) -> Any:
    made = import_module("mmdet3d.models.backbones.minkunet_backbone").MinkUNetBackbone
    channels = {"encoder_channels": [32, 64, 96, 128], "decoder_channels": [128, 96, 64, 64]}
    return made(scene.features.shape[1], sparseconv_backend="spconv", **channels)


BASIC = {
    "block_type": "basicblock",
    "encoder_channels": ((16, 16, 32), (32, 32, 64), (64, 64, 128), (128, 128)),
    "encoder_paddings": ((0, 0, 1), (0, 0, 1), (0, 0, (0, 1, 1)), (0, 0)),
}
ENCODERS = "mmdet3d.models.middle_encoders"

# -- Pointcept -------------------------------------------------------------------------------------


def of_points(net: Any, scene: Scene) -> Any:
    return net(scene.of_points())


def of_condition(net: Any, scene: Scene) -> Any:
    context = torch.linspace(-1, 1, 256)[None]
    return net({**scene.of_points(), "condition": "S3DIS", "context": context})


def of_transformer(net: Any, scene: Scene) -> Any:
    coord = scene.cells[:, 1:].float() * 0.02
    return net({**scene.of_points(), "coord": coord, "grid_size": 0.02})["feat"]


def pointcept(
    network: str,
    module: str,
    name: str,
    *,
    scene: Callable[[int], Scene] | None = None,
    call: Callable[[Any, Scene], Any] = of_points,
    **options: Any,
) -> Network:
    """Return a network of Pointcept: class ``name`` of a module, with these options."""

    def build(scene: Scene) -> Any:
        made = getattr(import_module(f"pointcept.models.{module}"), name)
        return made(in_channels=scene.features.shape[1], **options)

    return Network("Pointcept", network, scene or voxels(6), build, call)


SERIAL: dict[str, Any] = {
    "order": ("z", "hilbert"),
    "enable_flash": False,
    "shuffle_orders": False,
    "drop_path": 0.0,
    "enc_patch_size": (64,) * 5,
    "dec_patch_size": (64,) * 4,
}

# -- the others ------------------------------------------------------------------------------------


def det3d(module: str, name: str, **options: Any) -> Callable[[Scene], Any]:
    def build(scene: Scene) -> Any:
        made = getattr(import_module(f"det3d.models.backbones.{module}"), name)
        return made(scene.features.shape[1], **options)

    return build


def of_middle(net: Any, scene: Scene) -> Any:
    return net(scene.features, scene.cells, scene.images, scene.grid_size)


def of_middle_and_batch(net: Any, scene: Scene) -> Any:
    return net(scene.features, {"gt_boxes": None}, scene.cells, scene.images, scene.grid_size)


def segmentation(scene: Scene) -> Any:
    return import_module("segmentation.model").LargeKernel3D(scene.features.shape[1], 20)


def of_tensor(net: Any, scene: Scene) -> Any:
    return net(sparse(scene))


def softgroup(scene: Scene) -> Any:
    made = import_module("softgroup.model.softgroup").SoftGroup
    return made(in_channels=3, channels=16, num_blocks=5)


def unet(module: str, name: str, block: str = "") -> Callable[[Scene], Any]:
    """A U-Net of residual blocks behind the convolution that its detector begins with."""

    def build(scene: Scene) -> Any:
        spconv, made = import_module("spconv.pytorch"), import_module(module)
        options = {"norm_fn": partial(nn.BatchNorm1d, eps=1e-4, momentum=0.1), "block_reps": 2}
        if block:
            options["block"] = getattr(made, block)
        channels = scene.features.shape[1], 16
        first = spconv.SubMConv3d(*channels, 3, padding=1, bias=False, indice_key="subm1")
        return nn.Sequential(first, getattr(made, name)([16, 32, 48, 64], **options))

    return build


def distilled(scene: Scene) -> Any:
    spconv = import_module("spconv.pytorch")
    block = import_module("network.basic_block").SparseBasicBlock
    ends = (scene.features.shape[1], 16, "1"), (16, 16, "1"), (16, 32, "2")
    return spconv.SparseSequential(*(block(*of) for of in ends))


def of_backbone(net: Any, scene: Scene) -> Any:
    every = torch.arange(len(scene.features))
    points = net.forward_backbone(sparse(scene), every)
    return [*points, net.tiny_unet_outputlayer(net.tiny_unet(net.input_conv(sparse(scene))))]


def pillars(channels: int) -> Callable[[int], Scene]:
    return lambda seed: street(channels, (96, 80), seed)


def voxels(channels: int = 5) -> Callable[[int], Scene]:
    return lambda seed: street(channels, seed=seed)


def mixed(channels: int) -> Callable[[int], Scene]:
    """Two scenes in one, as Pointcept mixes them in training: some cells are there twice."""

    def scene(seed: int) -> Scene:
        whole = street(channels, seed=seed)
        half = whole.cells[whole.cells[:, 0] == 0]
        cells = torch.cat([whole.cells, half])
        cells[:, 0] = 0
        random = torch.Generator().manual_seed(seed)
        return Scene(torch.randn(len(cells), channels, generator=random), cells, whole.shape)

    return scene


BACKBONES = "backbones_3d"
# Focal layers in the first stage: their files join cells by a number that several cells may have,
# so that in later ones it depends on the order of rows, which spconv leaves open, what they join.
FIRST = {"USE_STAGES": [1]}
LARGE = {
    "kernel_sizes": [7, 5, 5, 3],
    "kernel_sizes_downsample": [5, 5],
    "conv_types": ["spatialgroupconv", "common", "common", "common"],
}

V1M1 = "sparse_unet.spconv_unet_v1m1_base"
V3M1 = "point_transformer_v3.point_transformer_v3m1_base"
NETWORKS = [
    Network("OpenPCDet", "VoxelBackBone8x", voxels(),
            pcdet(f"{BACKBONES}.spconv_backbone", "VoxelBackBone8x", {}), of_voxels),
    Network("OpenPCDet", "VoxelResBackBone8x", voxels(),
            pcdet(f"{BACKBONES}.spconv_backbone", "VoxelResBackBone8x", {}), of_voxels),
    Network("OpenPCDet", "PillarBackBone8x", pillars(32),
            pcdet(f"{BACKBONES}.spconv_backbone_2d", "PillarBackBone8x", {}), of_voxels),
    Network("OpenPCDet", "PillarRes18BackBone8x", pillars(32),
            pcdet(f"{BACKBONES}.spconv_backbone_2d", "PillarRes18BackBone8x", {}), of_voxels),
    Network("OpenPCDet", "UNetV2", voxels(),
            pcdet(f"{BACKBONES}.spconv_unet", "UNetV2", {}, **PLACE), of_voxels),
    Network("OpenPCDet", "VoxelResBackBone8xVoxelNeXt", voxels(),
            pcdet(f"{BACKBONES}.spconv_backbone_voxelnext", "VoxelResBackBone8xVoxelNeXt", {}),
            of_voxels),
    Network("OpenPCDet", "VoxelNeXtHead", pillars(32), head, of_heads),
    Network("mmdetection3d", "SparseEncoder", voxels(),
            mmdet3d(f"{ENCODERS}.sparse_encoder", "SparseEncoder"), of_encoder),
    Network("mmdetection3d", "SparseEncoder, basic blocks", voxels(),
            mmdet3d(f"{ENCODERS}.sparse_encoder", "SparseEncoder", **BASIC), of_encoder),
    Network("mmdetection3d", "SparseUNet", voxels(),
            mmdet3d(f"{ENCODERS}.sparse_unet", "SparseUNet"), of_encoder),
    Network("mmdetection3d", "MinkUNetBackbone", voxels(4), minkunet,
            lambda net, scene: net(scene.features, scene.cells)),
    Network("mmdetection3d", "BEVFusionSparseEncoder", lambda seed: street(5, (64, 72, 41), seed),
            mmdet3d("projects.BEVFusion.bevfusion.sparse_encoder", "BEVFusionSparseEncoder"),
            of_encoder),
    pointcept("SpUNet-v1m1", V1M1, "SpUNetBase", num_classes=13),
    pointcept("SpUNetNoSkipBase", V1M1, "SpUNetNoSkipBase", out_channels=13),
    pointcept("SpUNet-v1m2", "sparse_unet.spconv_unet_v1m2_bn_momentum", "SpUNetBase",
              num_classes=13),
    pointcept("SpUNet-v1m3 (PDNorm)", "sparse_unet.spconv_unet_v1m3_pdnorm", "SpUNetBase",
              call=of_condition, num_classes=13),
    pointcept("OACNNs", "oacnns.oacnns_v1m1_base", "OACNNs", num_classes=13),
    pointcept("PT-v3m1", V3M1, "PointTransformerV3", call=of_transformer, **SERIAL),
    pointcept("SpUNet-v1m1, scenes mixed", V1M1, "SpUNetBase", scene=mixed(6), num_classes=13),
    pointcept("PT-v3m1, scenes mixed", V3M1, "PointTransformerV3", scene=mixed(6),
              call=of_transformer, **SERIAL),
    Network("CenterPoint", "SpMiddleResNetFHD", voxels(),
            det3d("scn", "SpMiddleResNetFHD"), of_middle),
    Network("VoxelNeXt", "VoxelResBackBone8xVoxelNeXt2D", pillars(32),
            pcdet(f"{BACKBONES}.spconv_backbone_voxelnext2d", "VoxelResBackBone8xVoxelNeXt2D", {}),
            of_voxels),
    Network("VoxelNeXt", "VoxelResBackBone8xVoxelNeXtSPS", voxels(),
            pcdet(f"{BACKBONES}.spconv_backbone_voxelnext_sps", "VoxelResBackBone8xVoxelNeXtSPS",
                  {}), of_voxels),
    Network("FocalsConv", "VoxelBackBone8xFocal", voxels(),
            pcdet(f"{BACKBONES}.spconv_backbone_focal", "VoxelBackBone8xFocal", FIRST),
            of_voxels, trains=False),
    Network("FocalsConv", "SpMiddleResNetFHDFocal", voxels(),
            det3d("scn_focal", "SpMiddleResNetFHDFocal", SPECIAL_CONV_LIST=[1]),
            of_middle_and_batch, trains=False),
    Network("LargeKernel3D", "VoxelResBackBone8xLargeKernel3D", voxels(),
            pcdet(f"{BACKBONES}.spconv_backbone_largekernel", "VoxelResBackBone8xLargeKernel3D",
                  {}), of_voxels, trains=False),
    Network("LargeKernel3D", "SpMiddleResNetFHDLargeKernel", voxels(),
            det3d("scn_largekernel", "SpMiddleResNetFHDLargeKernel", **LARGE),
            of_middle_and_batch, trains=False),
    Network("LargeKernel3D", "LargeKernel3D (segmentation)", voxels(6), segmentation, of_tensor,
            trains=False),
    Network("SoftGroup", "SoftGroup", voxels(6), softgroup, of_backbone),
    Network("SPFormer", "UBlock", voxels(6),
            unet("spformer.model.backbone", "UBlock", "ResidualBlock"), of_tensor),
    Network("oneformer3d", "SpConvUNet", voxels(6),
            unet("oneformer3d.spconv_unet", "SpConvUNet"), of_tensor),
    Network("ISBNet", "UBlock", voxels(6),
            unet("isbnet.model.blocks", "UBlock", "ResidualBlock"), of_tensor),
    Network("2DPASS", "SparseBasicBlock, three", voxels(6), distilled, of_tensor),
]  # fmt: skip


def packages(project: str, checkouts: Path) -> dict[str, list[Path]]:
    """The packages of a project, where its checkout lies among others."""
    folders = FOLDERS[project].items()
    return {name: [checkouts / folder for folder in places] for name, places in folders}
