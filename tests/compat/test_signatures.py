"""Names, arguments and defaults are spconv 2.3.8's; they stand here as they were printed."""

from __future__ import annotations

import importlib
import inspect
from typing import Any

import pytest
import torch

import layoutconv.compat.spconv.pytorch as spconv

from .. import precision

CONV = (
    "in_channels, out_channels, kernel_size, stride=1, padding=0, dilation=1, groups=1, bias=True, "
    "indice_key=None, algo=None, fp32_accum=None"
)
COUNTED = f"{CONV}, record_voxel_count=False, large_kernel_fast_algo=False, name=None"
POOL = (
    "kernel_size, stride=None, padding=0, dilation=1, indice_key=None, algo=None, "
    "record_voxel_count=False, name=None"
)
POINTS = (
    "vsize_xyz, coors_range_xyz, num_point_features, max_num_voxels, max_num_points_per_voxel, "
    "device=cpu:0"
)
SIGNATURES = {
    "SparseConvTensor": (
        "features, indices, spatial_shape, batch_size, grid=None, voxel_num=None, "
        "indice_dict=None, benchmark=False, permanent_thrust_allocator=False, "
        "enable_timer=False, force_algo=None"
    ),
    "SparseConvTensor.replace_feature": "self, feature",
    "SparseConvTensor.dense": "self, channels_first=True",
    "SparseConvTensor.from_dense": "x",
    "SparseConvTensor.find_indice_pair": "self, key",
    "SparseConvTensor.shadow_copy": "self",
    "SparseConvTensor.select_by_index": "self, valid_indices",
    "SparseConvTensor.minus": "self",
    "SparseConvTensor.dequantize": "self",
    "conv.SparseConvolution": (
        "ndim, in_channels, out_channels, kernel_size=3, stride=1, padding=0, dilation=1, "
        "groups=1, bias=True, subm=False, output_padding=0, transposed=False, inverse=False, "
        "indice_key=None, algo=None, fp32_accum=None, record_voxel_count=False, act_type=None_, "
        "act_alpha=0, act_beta=0, large_kernel_fast_algo=False, name=None, device=None, dtype=None"
    ),
    "conv.SparseConvolution.forward": "self, input, add_input=None",
    **{
        f"SubMConv{rank}d": f"{CONV}, large_kernel_fast_algo=False, name=None"
        for rank in (1, 2, 3, 4)
    },
    **{f"SparseConv{rank}d": COUNTED for rank in (1, 2, 3, 4)},
    **{f"SparseConvTranspose{rank}d": COUNTED for rank in (1, 2, 3, 4)},
    **{
        f"SparseInverseConv{rank}d": (
            "in_channels, out_channels, kernel_size, indice_key, bias=True, algo=None, "
            "fp32_accum=None, large_kernel_fast_algo=False, name=None"
        )
        for rank in (1, 2, 3, 4)
    },
    **{f"SparseMaxPool{rank}d": POOL for rank in (1, 2, 3, 4)},
    **{f"SparseAvgPool{rank}d": POOL for rank in (1, 2, 3)},
    "SparseGlobalMaxPool": "name=None",
    "SparseGlobalAvgPool": "name=None",
    "SparseSequential": "*args, **kwargs",
    "SparseModule": "name=None",
    "functional.sparse_add": "*tens",
    "functional.sparse_add_hash_based": "*tens",
    "utils.PointToVoxel": POINTS,
    "utils.PointToVoxel.__call__": "self, pc, clear_voxels=True, empty_mean=False",
    "utils.PointToVoxel.generate_voxel_with_id": "self, pc, clear_voxels=True, empty_mean=False",
    "utils.gather_features_by_pc_voxel_id": "seg_res_features, pc_voxel_id, invalid_value=0",
    "ops.get_conv_output_size": "input_size, kernel_size, stride, padding, dilation",
    "ops.get_deconv_output_size": (
        "input_size, kernel_size, stride, padding, dilation, output_padding"
    ),
}
NAMES = {
    "AddTable", "ConcatTable", "ConvAlgo", "Identity", "JoinTable", "RemoveGrid", "SparseBatchNorm",
    "SparseIdentity", "SparseReLU", "ToDense", "assign_name_for_sparse_modules", "functional",
    "ops", "SparseSyncBatchNorm", "conv", "modules", "pool", "tables", "constants", "__version__",
}  # fmt: skip


def text_of(signature: inspect.Signature) -> str:
    def text(p: inspect.Parameter) -> str:
        stars = {p.VAR_POSITIONAL: "*", p.VAR_KEYWORD: "**"}.get(p.kind, "")
        if p.default is p.empty:
            return stars + p.name
        default: Any = p.default
        return f"{p.name}={getattr(default, 'name', default)}"

    return ", ".join(map(text, signature.parameters.values()))


@pytest.mark.parametrize("name", sorted(SIGNATURES))
def test_signature(name: str) -> None:
    found: Any = spconv
    for part in name.split("."):
        found = getattr(found, part)
    assert text_of(inspect.signature(found)) == SIGNATURES[name]


def test_names() -> None:
    assert {*vars(spconv)} >= NAMES
    assert [algo.name for algo in spconv.ConvAlgo] == [
        "Native",
        "MaskImplicitGemm",
        "MaskSplitImplicitGemm",
    ]


@pytest.mark.parametrize(
    ("module", "names"),
    [
        ("pytorch", "SparseConvTensor SubMConv3d SparseModule"),
        ("pytorch.core", "SparseConvTensor expand_nd IndiceData"),
        ("pytorch.conv", "SparseConvolution SubMConv3d SparseConv3d SparseInverseConv3d"),
        ("pytorch.modules", "SparseModule SparseSequential is_spconv_module is_sparse_conv"),
        ("pytorch.pool", "SparseMaxPool SparseAvgPool SparseMaxPool3d SparseGlobalMaxPool"),
        ("pytorch.tables", "AddTable ConcatTable JoinTable AddTableMisaligned"),
        ("pytorch.identity", "Identity"),
        ("pytorch.functional", "sparse_add sparse_add_hash_based"),
        ("pytorch.ops", "ConvAlgo get_conv_output_size"),
        ("pytorch.utils", "PointToVoxel gather_features_by_pc_voxel_id"),
        ("pytorch.constants", "SPCONV_ALLOW_TF32 SPCONV_USE_DIRECT_TABLE"),
        ("constants", "SPCONV_ALLOW_TF32 SPCONV_USE_DIRECT_TABLE SAVED_WEIGHT_LAYOUT"),
        ("core", "ConvAlgo"),
        ("utils", "Point2VoxelCPU1d Point2VoxelCPU4d Point2VoxelGPU3d VoxelGeneratorV2"),
    ],
)
def test_modules(module: str, names: str) -> None:
    found = importlib.import_module(f"layoutconv.compat.spconv.{module}")
    assert [name for name in names.split() if not hasattr(found, name)] == []


@pytest.mark.parametrize(
    ("module", "name", "sentence"),
    [
        ("pytorch.ops", "get_indice_pairs", "submanifold_map"),
        ("pytorch.ops", "implicit_gemm", "layoutconv.nn.sparse"),
        ("pytorch.functional", "indice_conv", "layoutconv.nn.sparse"),
        ("pytorch.functional", "indice_maxpool", "sparse_pool"),
        ("utils", "rbbox_iou", "boxes"),
        ("utils", "nothing", ""),
    ],
)
def test_what_is_not_there_says_so(module: str, name: str, sentence: str) -> None:
    found = importlib.import_module(f"layoutconv.compat.spconv.{module}")
    assert not hasattr(found, name)
    with pytest.raises(AttributeError, match=f"{name}.*{sentence}"):
        getattr(found, name)


def test_settings(constants: Any) -> None:
    """As OpenPCDet reads and writes them; that of tf32 is torch's."""
    import layoutconv.compat.spconv as package

    assert float(package.__version__[2:]) >= 2.2
    package.constants.SPCONV_USE_DIRECT_TABLE = False
    assert spconv.constants.SPCONV_USE_DIRECT_TABLE is False
    with precision.restored():
        for allowed in (True, False):
            torch.backends.cudnn.allow_tf32 = allowed
            assert package.constants.SPCONV_ALLOW_TF32 is allowed
            spconv.constants.SPCONV_ALLOW_TF32 = not allowed
            assert torch.backends.cudnn.allow_tf32 is not allowed
