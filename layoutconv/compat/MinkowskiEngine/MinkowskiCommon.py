"""The base of MinkowskiEngine's modules."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import torch

from ...errors import ArgumentError, ArgumentTypeError
from ...nn.scripting import refuse_scripting
from .MinkowskiKernelGenerator import Ints, KernelGenerator, convert_to_int_list
from .MinkowskiSparseTensor import SparseTensor

__all__ = [
    "MinkowskiModuleBase",
    "MinkowskiNetwork",
    "convert_to_int_list",
    "convert_to_int_tensor",
]


def convert_to_int_tensor(arg: Ints, dimension: int) -> torch.Tensor:
    """Return a number per mode, int32.

    >>> convert_to_int_tensor(2, 3)
    tensor([2, 2, 2], dtype=torch.int32)
    """
    return torch.tensor(convert_to_int_list(arg, dimension), dtype=torch.int32)


class MinkowskiModuleBase(torch.nn.Module):
    """A module over sparse tensors."""

    __prepare_scriptable__ = refuse_scripting


class MinkowskiNetwork(torch.nn.Module, ABC):
    """A network of ``D`` spatial modes."""

    def __init__(self, D: int) -> None:
        super().__init__()
        self.D = D

    @abstractmethod
    def forward(self, x: Any) -> Any:
        """The forward pass, which a network defines."""


def check_input(input: Any, dimension: int | None = None, name: str = "input") -> SparseTensor:
    """Return ``input`` if it is a sparse tensor, of ``dimension`` modes if given; else raise."""
    if not isinstance(input, SparseTensor):
        raise ArgumentTypeError(name, "a SparseTensor", type(input).__name__)
    if dimension not in (None, input.D):
        raise ArgumentError(
            "input", f"a tensor of {dimension} spatial modes, as the module has", input.D
        )
    return input


def region_text(region: KernelGenerator) -> str:
    """Return the sizes of a filter as MinkowskiEngine prints them."""
    return (
        f"kernel_size={region.kernel_size}, stride={region.kernel_stride}, "
        f"dilation={region.kernel_dilation}"
    )
