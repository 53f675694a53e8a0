"""Networks of other packages, converted: the same outputs, and every convolution that is plain."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from importlib import import_module
from typing import Any

import pytest
import torch

import layoutconv as lc

Made = tuple[torch.nn.Module, tuple[int, ...]]


def _module(name: str, attribute: str = "__name__") -> Any:
    """A package that is installed and works, or what it imports when it is asked for that: its
    compiled part may be of another torch."""
    try:
        module = import_module(name)
        found = getattr(module, attribute)
        return module if attribute == "__name__" else found
    except (ImportError, RuntimeError, OSError) as error:
        pytest.skip(f"{name}: {error}")


def _of_torchvision(name: str, *shape: int) -> Made:
    models = _module("torchvision.models")
    make = getattr(models, name, None) or getattr(models.video, name)
    return make(weights=None), shape


def _of_timm(name: str) -> Made:
    return _module("timm").create_model(name, pretrained=False), (1, 3, 64, 64)


def _segresnet() -> Made:
    make = _module("monai.networks.nets").SegResNet
    net = make(3, 8, in_channels=1, out_channels=2, blocks_down=(1, 2), blocks_up=(1,))
    return net, (1, 1, 16, 16, 16)


def _dynunet() -> Made:
    make = _module("monai.networks.nets").DynUNet
    net = make(3, 1, 3, [3, 3, 3], [1, 2, 2], [2, 2], filters=[8, 16, 32])
    return net, (1, 1, 16, 16, 16)


def _swin_unetr() -> Made:
    options = {"in_channels": 1, "out_channels": 2, "feature_size": 12}
    make = _module("monai.networks.nets").SwinUNETR
    return make(**options, depths=(1,) * 4, num_heads=(2,) * 4), (1, 1, 64, 32, 32)


def _autoencoder() -> Made:
    blocks = {"down_block_types": ("DownEncoderBlock2D",) * 2} | {
        "up_block_types": ("UpDecoderBlock2D",) * 2
    }
    make = _module("diffusers", "AutoencoderKL")
    return make(block_out_channels=(16, 32), norm_num_groups=4, **blocks), (1, 3, 16, 16)


def _unet() -> Made:
    blocks = {
        "down_block_types": ("CrossAttnDownBlock2D", "DownBlock2D"),
        "up_block_types": ("UpBlock2D", "CrossAttnUpBlock2D"),
    }
    sizes = {"layers_per_block": 1, "block_out_channels": (16, 32), "cross_attention_dim": 16}
    make = _module("diffusers", "UNet2DConditionModel")
    net = make(sample_size=16, norm_num_groups=4, attention_head_dim=8, **sizes, **blocks)
    return net, (1, 4, 16, 16)


def _wan() -> Made:
    """Its convolutions pad and join frames by themselves, and it decodes frame by frame."""
    sizes = {"base_dim": 8, "z_dim": 4, "dim_mult": [1, 2, 2], "num_res_blocks": 1}
    make = _module("diffusers", "AutoencoderKLWan")
    return make(temperal_downsample=[False, True], **sizes), (1, 3, 5, 16, 16)


NETWORKS: dict[str, Callable[[], Made]] = {
    "torchvision resnet50": lambda: _of_torchvision("resnet50", 1, 3, 64, 64),
    "torchvision resnext50_32x4d": lambda: _of_torchvision("resnext50_32x4d", 1, 3, 64, 64),
    "torchvision convnext_tiny": lambda: _of_torchvision("convnext_tiny", 1, 3, 64, 64),
    "torchvision efficientnet_b0": lambda: _of_torchvision("efficientnet_b0", 1, 3, 64, 64),
    "torchvision r3d_18": lambda: _of_torchvision("r3d_18", 1, 3, 4, 32, 32),
    "torchvision r2plus1d_18": lambda: _of_torchvision("r2plus1d_18", 1, 3, 4, 32, 32),
    "timm resnet50": lambda: _of_timm("resnet50"),
    "timm resnext50_32x4d": lambda: _of_timm("resnext50_32x4d"),
    "timm convnext_tiny": lambda: _of_timm("convnext_tiny"),
    "timm efficientnet_b0": lambda: _of_timm("efficientnet_b0"),
    "monai SegResNet": _segresnet,
    "monai DynUNet": _dynunet,
    "monai SwinUNETR": _swin_unetr,
    "diffusers AutoencoderKL": _autoencoder,
    "diffusers UNet2DConditionModel": _unet,
    "diffusers AutoencoderKLWan": _wan,
}


@pytest.mark.slow
@pytest.mark.parametrize("name", NETWORKS)
def test_a_network_gives_what_it_gave(name: str) -> None:
    """In float64, gradients too: in float32 torch's own differ by 1e-2, see ``test_convert``."""
    torch.manual_seed(0)
    net, shape = NETWORKS[name]()
    net.double().eval()
    plain = [m for m in net.modules() if isinstance(m, torch.nn.modules.conv._ConvNd)]
    own, report = lc.nn.convert(deepcopy(net), return_report=True)
    assert len(report.swapped) == len(plain)
    assert report.left == {}
    x = torch.randn(2, *shape[1:], dtype=torch.float64)
    found, expected = (_step(network, name, x) for network in (own, net))
    assert (found[0] - expected[0]).norm() <= 1e-12 * expected[0].norm()
    most = max(gradient.norm() for gradient in expected[1:])
    for gradient, wanted in zip(found[1:], expected[1:], strict=True):
        assert (gradient - wanted).norm() <= 1e-9 * (wanted.norm() + 1e-3 * most)


def _step(net: torch.nn.Module, name: str, x: torch.Tensor) -> list[torch.Tensor]:
    """The result, and the gradients of a training step, without any randomness of its own."""
    more = (torch.tensor([3, 5]), x.new_ones(2, 5, 16)) if name.endswith("ConditionModel") else ()
    for module in net.modules():  # batch norms of this step's statistics
        module.training = isinstance(module, torch.nn.modules.batchnorm._BatchNorm)
    y = _tensor(net(x, *more))
    (y * torch.linspace(-1, 1, y.numel(), dtype=y.dtype).view(y.shape)).sum().backward()
    return [y.detach(), *(p.grad for p in net.parameters() if p.grad is not None)]


def _tensor(result: Any) -> torch.Tensor:
    found = result if isinstance(result, torch.Tensor) else result.sample
    assert isinstance(found, torch.Tensor)
    return found
