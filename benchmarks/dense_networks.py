"""Dense networks of other libraries, with random weights: how each is built, and what it is given.

A network is built by a function that imports its library. Its case says how a call runs it: a
forward pass in half precision, or a step of training under autocast.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

Run = Callable[[nn.Module, Tensor], Any]


class Case(NamedTuple):
    """A network and its input.

    Attributes:
        name: of the row.
        build: makes the module, on a CPU in float32.
        shape: of the input, (N, C, ...).
        run: a forward pass, where it is no plain call.
        trains: whether a call is a step of training, forward, loss and backward.
        dtype: of an evaluation, and of autocast in a step.
    """

    name: str
    build: Callable[[], nn.Module]
    shape: tuple[int, ...]
    run: Run = lambda net, x: net(x)
    trains: bool = False
    dtype: torch.dtype = torch.float16


def of(module: str, name: str, *args: Any, **named: Any) -> Callable[[], nn.Module]:
    """A builder that imports a library when it is called."""

    def build() -> nn.Module:
        made: nn.Module = getattr(import_module(module), name)(*args, **named)
        return made

    return build


def decoded(net: Any, x: Tensor) -> Tensor:
    image: Tensor = net.decode(x, return_dict=False)[0]
    return image


def denoised(net: Any, x: Tensor) -> Tensor:
    """A step of Stable Diffusion's U-Net, of a prompt of 77 tokens."""
    prompt = x.new_zeros(len(x), 77, 768)
    noise: Tensor = net(x, torch.tensor(7, device=x.device), prompt, return_dict=False)[0]
    return noise


_MONAI, _VIDEO = "monai.networks.nets", "torchvision.models.video"
_DYNUNET: dict[str, Any] = {
    "kernel_size": [3] * 6,
    "strides": [1, 2, 2, 2, 2, 2],
    "upsample_kernel_size": [2] * 5,
    "filters": [32, 64, 128, 256, 320, 320],
    "norm_name": "instance",
}
_BLOCKS: dict[str, Any] = {
    "down_block_types": ("DownEncoderBlock2D",) * 4,
    "up_block_types": ("UpDecoderBlock2D",) * 4,
    "block_out_channels": (128, 256, 512, 512),
    "layers_per_block": 2,
}
_IMAGES = 64, 3, 224, 224

CASES = [
    Case("DynUNet, a step", of(_MONAI, "DynUNet", 3, 1, 3, **_DYNUNET), (2, 1, 128, 128, 128),
         trains=True),
    Case("SegResNet, a step", of(_MONAI, "SegResNet", 3, 16, in_channels=1, out_channels=3),
         (1, 1, 128, 128, 128), trains=True),
    Case("SwinUNETR, a step",
         of(_MONAI, "SwinUNETR", in_channels=1, out_channels=3, feature_size=24),
         (1, 1, 96, 96, 96), trains=True),
    Case("AutoencoderKLWan, decode", of("diffusers", "AutoencoderKLWan"), (1, 16, 21, 60, 104),
         decoded, dtype=torch.bfloat16),
    Case("AutoencoderKL, decode", of("diffusers", "AutoencoderKL", latent_channels=4, **_BLOCKS),
         (1, 4, 64, 64), decoded),
    Case("UNet2DConditionModel", of("diffusers", "UNet2DConditionModel", cross_attention_dim=768),
         (2, 4, 64, 64), denoised),
    *(Case(f"{name}, a step", of("timm", "create_model", name), _IMAGES, trains=True)
      for name in ("resnet50", "resnext50_32x4d", "convnext_tiny", "efficientnet_b0")),
    *(Case(name, of("timm", "create_model", name), _IMAGES)
      for name in ("resnet50", "resnext50_32x4d", "convnext_tiny", "efficientnet_b0")),
    *(Case(f"{name}, a step", of(_VIDEO, name), (8, 3, 16, 112, 112), trains=True)
      for name in ("r3d_18", "r2plus1d_18")),
]  # fmt: skip
