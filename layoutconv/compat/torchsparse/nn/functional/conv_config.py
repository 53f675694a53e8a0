"""Settings of TorchSparse's convolutions; only one has an effect: the cells of a strided layer.

``downsample_mode`` is "spconv", cells that a filter reaches, or "minkowski", ``floor(x / stride)``
for any filter. Dataflows, kernel-map and convolution modes choose kernels in TorchSparse, and are
accepted without effect. As in TorchSparse, changing the result of :func:`get_default_conv_config`
changes the default.

>>> config = get_default_conv_config()
>>> config.downsample_mode, config["dataflow"]
('spconv', <Dataflow.ImplicitGEMM: 0>)
"""

from __future__ import annotations

from enum import Enum
from typing import Any, ClassVar

from .....errors import ArgumentError, ArgumentTypeError
from ....attributes import Attributes

DOWNSAMPLE_MODES = "spconv", "minkowski"


class Dataflow(Enum):
    """Kept for those who pass it."""

    ImplicitGEMM = 0
    GatherScatter = 1
    FetchOnDemand = 2
    CodedCSR = 3


class ConvMode(Enum):
    """Kept for those who pass it."""

    mode0 = 0
    mode1 = 1
    mode2 = 2


class ConvConfig(Attributes):
    """A dict whose entries are attributes as well.

    >>> ConvConfig(ifsort=True).ifsort
    True
    """


class _Settings:
    default: ClassVar[ConvConfig] = ConvConfig(
        dataflow=Dataflow.ImplicitGEMM,
        ifsort=False,
        kmap_mode="hashmap_on_the_fly",
        downsample_mode=DOWNSAMPLE_MODES[0],
        split_mask_num=1,
        split_mask_num_bwd=3,
        epsilon=0.0,
        mm_thresh=0,
        FOD_fusion=True,
    )
    of_all: ClassVar[Any] = None
    kmap_mode: ClassVar[str] = "hashmap_on_the_fly"
    downsample_mode: ClassVar[str] = DOWNSAMPLE_MODES[0]
    conv_mode: ClassVar[Any] = ConvMode.mode0


def get_default_conv_config(conv_mode: Any = ConvMode.mode0, training: bool = False) -> ConvConfig:
    """Return the settings of layers without any of their own."""
    return _Settings.default


def get_global_conv_config() -> Any:
    """Return the global settings of layers without any of their own; None if none were set."""
    return _Settings.of_all


def set_global_conv_config(conv_config: Any) -> None:
    """Set the settings of all layers without any of their own; missing entries are the defaults."""
    _Settings.of_all = conv_config


def clear_global_conv_config() -> None:
    """Clear the global settings."""
    _Settings.of_all = None


def downsample_mode_of(config: Any) -> str:
    """Return the downsampling rule of a layer with these settings, or None.

    Raises :class:`~layoutconv.errors.ArgumentError` for anything but these two rules.

    >>> downsample_mode_of({"downsample_mode": "minkowski"}), downsample_mode_of(None)
    ('minkowski', 'spconv')
    """
    of: Any = config or _Settings.of_all or _Settings.default
    if not (isinstance(of, dict) or hasattr(of, "downsample_mode") or hasattr(of, "dataflow")):
        raise ArgumentTypeError("config", "a ConvConfig, or a dict", type(of).__name__)
    get = of.get if isinstance(of, dict) else lambda name, other: getattr(of, name, other)
    mode: str = get("downsample_mode", _Settings.default["downsample_mode"])
    if mode not in DOWNSAMPLE_MODES:
        raise ArgumentError("config", f"downsample_mode of {' or '.join(DOWNSAMPLE_MODES)}", mode)
    return mode


def get_kmap_mode() -> str:
    """Return the kernel-map mode that was set last."""
    return _Settings.kmap_mode


def set_kmap_mode(kmap_mode: str) -> None:
    """Accepted, without effect."""
    _Settings.kmap_mode = kmap_mode


def get_downsample_mode() -> str:
    """Return the rule that was set last, which layers ignore."""
    return _Settings.downsample_mode


def set_downsample_mode(downsample_mode: str) -> None:
    """Set a rule that layers ignore, as in TorchSparse 2.1: they use their settings."""
    if downsample_mode not in DOWNSAMPLE_MODES:
        raise ArgumentError("downsample_mode", " or ".join(DOWNSAMPLE_MODES), downsample_mode)
    _Settings.downsample_mode = downsample_mode


def get_conv_mode() -> Any:
    """Return the convolution mode that was set last."""
    return _Settings.conv_mode


def set_conv_mode(conv_mode: Any) -> None:
    """Accepted, without effect: 0 to 2, or a :class:`ConvMode`.

    >>> set_conv_mode(5)
    Traceback (most recent call last):
    layoutconv.errors.ArgumentError: argument `conv_mode`: expected 0 to 2 or a ConvMode, got 5
    """
    try:
        _Settings.conv_mode = ConvMode(conv_mode)
    except ValueError:
        raise ArgumentError("conv_mode", "0 to 2 or a ConvMode", conv_mode) from None
