"""Names of spconv that are missing here, each with a sentence on why, and on its replacement."""

from __future__ import annotations

import dis
import sys
from collections.abc import Callable, Mapping
from typing import NoReturn

_KERNELS = "layoutconv compiles kernels of its own, which layers choose themselves"
_TABLES = "layoutconv.sparse has kernel maps: submanifold_map, strided_map and transposed_map"
_FUNCTIONS = "layoutconv.nn.sparse has the convolutions as functions of a kernel map"
_POOLING = "layoutconv.nn.sparse_pool has pooling as functions of a kernel map"
_CUMM = "tensors stay torch's, and cumm is not needed"
_MEMORY = "torch allocates all memory"
_BOXES = "boxes and their suppression are no part of layoutconv; torchvision.ops has some"
_INT8 = (
    "layoutconv.nn.quantize(net, batches) calibrates a network and quantises its layers, these "
    "too, without torch.fx; with training=True it trains for that"
)
_MOVED = 'spconv 2 has it in spconv.pytorch; install("1.2") is for files of spconv 1.x'
_DEBUG = "an error of layoutconv names the argument that is wrong"

_NAMES = {
    _KERNELS: (
        "GEMM CONV GEMM_CPP CONV_CPP SimpleGemm SimpleConv "
        "GemmTunerSimple ConvTunerSimple SimpleGemmAlgoMeta "
        "BestAlgoByProfile BestConvAlgoByProfile "
        "ALL_ALGO_DESPS ALL_CONV_ALGO_DESPS "
        "SHUFFLE_SIMT_PARAMS SHUFFLE_VOLTA_PARAMS SHUFFLE_TURING_PARAMS "
        "SHUFFLE_AMPERE_PARAMS IMPLGEMM_SIMT_PARAMS IMPLGEMM_VOLTA_PARAMS "
        "IMPLGEMM_TURING_PARAMS IMPLGEMM_AMPERE_PARAMS "
        "ALL_NATIVE_PARAMS ALL_IMPGEMM_PARAMS "
        "SpconvOps ConvGemmOps InferenceOps CompileInfo get_arch "
        "COMPILED_CUDA_ARCHS COMPILED_CUDA_GEMM_ARCHS"
    ),
    _TABLES: "get_indice_pairs get_indice_pairs_implicit_gemm",
    _FUNCTIONS: (
        "indice_conv indice_subm_conv indice_inverse_conv implicit_gemm "
        "indice_conv_backward implicit_gemm_backward fused_indice_conv "
        "SparseConvFunction SparseInverseConvFunction "
        "SubMConvFunction SparseImplicitGemmFunction"
    ),
    _POOLING: (
        "indice_maxpool indice_maxpool_backward global_pool_rearrange "
        "indice_maxpool_implicit_gemm indice_maxpool_implicit_gemm_backward "
        "indice_avgpool_implicit_gemm indice_avgpool_implicit_gemm_backward "
        "SparseMaxPoolFunction SparseMaxPoolImplicitGemmFunction "
        "SparseAvgPoolImplicitGemmFunction"
    ),
    _CUMM: (
        "torch_tensor_to_tv torch_tensors_to_tv get_current_stream "
        "BUILD_CUMM_VERSION BUILD_PCCM_VERSION"
    ),
    _MEMORY: (
        "ThrustSortAllocator TorchAllocator ExternalAllocator "
        "TorchSpconvMatmul ExternalSpconvMatmul AllocKeys"
    ),
    _BOXES: (
        "rbbox_iou rbbox_intersection rbbox_iou_loss BoxOps "
        "non_max_suppression non_max_suppression_cpu "
        "rotate_non_max_suppression_cpu"
    ),
    _INT8: (
        "DEFAULT_SPARSE_CONV_TYPES ALL_POOL_LAYERS NetworkInterpreter "
        "get_spconv_backend_config get_spconv_prepare_custom_config "
        "get_spconv_convert_custom_config prepare_spconv_torch_inference "
        "get_default_spconv_trt_ptq_qconfig get_default_spconv_trt_qat_qconfig "
        "get_default_spconv_qconfig_mapping get_spconv_fmod_to_qat_mapping "
        "get_spconv_qat_to_static_mapping remove_conv_add_dq transform_qdq quantized_add "
        "SparseFusedMovingAvgObsFakeQuantize SparseMovingAvgObsFakeQuantize "
        "SparseHistogramObserver SparseMinMaxObserver SpconvReLUNd SpconvBnNd SpconvBnReLUNd "
        "SpconvAddReLUNd SpconvBnAddReLUNd SparseConv SparseConvReLU SparseConvAddReLU "
        "SparseConvBn SparseConvBnReLU SparseConvBnAddReLU SpConv LinearPerChannelWeight "
        "set_int8_test enable_int8_test_mode"
    ),
    _DEBUG: "spconv_save_debug_data SPCONV_DEBUG_SAVE_PATH",
}

_OF_1X = (  # whose layers are in spconv itself
    "SparseConvTensor SparseModule SparseSequential ToDense RemoveGrid AddTable ConcatTable "
    "JoinTable SparseConv2d SparseConv3d SparseConv4d SparseConvTranspose2d SparseConvTranspose3d "
    "SparseInverseConv2d SparseInverseConv3d SubMConv2d SubMConv3d SubMConv4d SparseMaxPool2d "
    "SparseMaxPool3d conv functional modules ops pool"
)

MOVED = dict.fromkeys(_OF_1X.split(), _MOVED)
REASONS = {name: reason for reason, names in _NAMES.items() for name in names.split()}

MODULES = {
    **{name: MOVED[name] for name in ("conv", "functional", "modules", "ops", "pool")},
    "algocore": _KERNELS,
    "build": "layoutconv is wheels only: nothing is built",
    "benchmark": "`python -m layoutconv bench` measures",
    "core_cc": _KERNELS,
    "csrc": _KERNELS,
    "debug_utils": _DEBUG,
    "gencode": _KERNELS,
    "test_utils": "layoutconv.testing and tests of its own are not spconv's",
    "pytorch.interpreter": _INT8,
    **{
        f"pytorch.quantization.{name}": _INT8
        for name in [
            "backend_cfg",
            "fake_q",
            "fuse_mapping",
            "graph",
            "interpreter",
            "intrinsic",
            "modules",
            "qmapping",
            "quantized",
        ]
    },
}


def explain(module: str, absent: Mapping[str, str] = REASONS) -> Callable[[str], NoReturn]:
    """Return a ``__getattr__`` for ``module`` that explains the names and modules of ``absent``.

    It raises ``AttributeError``, but ``ImportError`` in a ``from module import name``, whose own
    message would omit the reason.

    >>> explain("layoutconv.compat.spconv.utils", {"rbbox_iou": "boxes are another package's"})(
    ...     "rbbox_iou"
    ... )
    Traceback (most recent call last):
    AttributeError: layoutconv.compat.spconv.utils has no 'rbbox_iou': boxes are another package's
    """
    inner = module.removeprefix(__name__.rpartition(".")[0]).lstrip(".")

    def getattribute(name: str) -> NoReturn:
        reason = absent.get(name) or MODULES.get(f"{inner}.{name}".lstrip("."))
        if reason is None:
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        message = f"{module} has no {name!r}: {reason}"
        if _is_imported_by(1):
            raise ImportError(message, name=module)
        raise AttributeError(message)

    return getattribute


def _is_imported_by(depth: int) -> bool:
    """Return whether the caller of our caller, ``depth`` frames up, is within a ``from``-import."""
    frame = sys._getframe(depth + 1)
    code = frame.f_code.co_code
    return 0 <= frame.f_lasti < len(code) and dis.opname[code[frame.f_lasti]] == "IMPORT_FROM"
