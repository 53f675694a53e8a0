"""Networks, as ``torchsparse.backbones``."""

from . import modules
from .resnet import SparseResNet21D
from .unet import SparseResUNet42

__all__ = ["SparseResNet21D", "SparseResUNet42", "modules"]
