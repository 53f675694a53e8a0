"""Names of spconv's algorithms and activations."""

from __future__ import annotations

from enum import Enum

from .absent import explain

__getattr__ = explain(__name__)


class ConvAlgo(Enum):
    """spconv's algorithms. A layer accepts and keeps one; layoutconv chooses kernels by itself.

    >>> ConvAlgo.MaskImplicitGemm.value
    1
    """

    Native = 0
    MaskImplicitGemm = 1
    MaskSplitImplicitGemm = 2


class AlgoHint(Enum):
    """spconv's hints to its tuner, for programs that read them; layoutconv has no such tuner.

    >>> AlgoHint.Fowrard.value  # its own spelling
    1
    """

    NoHint = 0b000
    Fowrard = 0b001
    BackwardInput = 0b010
    BackwardWeight = 0b100


class Activation(Enum):
    """Activations that can be fused into a convolution: cumm's ``tensorview.gemm.Activation``.

    >>> [activation.name for activation in Activation]
    ['None_', 'ReLU', 'Sigmoid', 'LeakyReLU']
    """

    None_ = 0
    ReLU = 1
    Sigmoid = 2
    LeakyReLU = 3
