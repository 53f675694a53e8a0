"""``spconv.pytorch.quantization.core``: features as torch's quantized integers."""

from __future__ import annotations

from typing import Any

import torch

from ...absent import explain
from ..core import SparseConvTensor


def quantize_per_tensor(ten: Any, scale: Any, zero_point: Any, dtype: torch.dtype) -> Any:
    """``torch.quantize_per_tensor`` of a tensor, of a sparse tensor's features, or of a list.

    Of a list, ``scale`` and ``zero_point`` are lists as well.

    >>> cells = torch.tensor([[0, 1], [0, 2]], dtype=torch.int32)
    >>> x = SparseConvTensor(torch.tensor([[1.0], [-0.4]]), cells, [4], 1)
    >>> y = quantize_per_tensor(x, 0.5, 0, torch.qint8)
    >>> y.is_quantized, y.features.int_repr().T, y.dequantize().features.T
    (True, tensor([[ 2, -1]], dtype=torch.int8), tensor([[ 1.0000, -0.5000]]))
    """
    if isinstance(ten, list | tuple):
        numbers = zip(ten, scale, zero_point, strict=True)
        return [quantize_per_tensor(one, s, z, dtype) for one, s, z in numbers]
    if isinstance(ten, SparseConvTensor):
        features = torch.quantize_per_tensor(ten.features, scale, zero_point, dtype)
        return ten.replace_feature(features)
    return torch.quantize_per_tensor(ten, scale, zero_point, dtype)


__getattr__ = explain(__name__)
