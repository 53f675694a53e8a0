"""Residual blocks in the manner of projects that are written for spconv, for our names.

Not in a file of tests, whose assertions pytest makes other code of.
"""

from __future__ import annotations

from typing import Any

from torch import nn

import layoutconv.compat.spconv.pytorch as spconv

C = 8
SEEN: list[int] = []


def replace(out: Any, features: Any) -> Any:
    """As projects have it that run with any version of spconv."""
    if "replace_feature" in out.__dir__():
        return out.replace_feature(features)
    else:
        out.features = features
        return out


class Detecting(spconv.SparseModule):
    """In the manner of OpenPCDet's blocks."""

    def __init__(self, downsample: Any = None, C: int = C, key: str = "a") -> None:
        super().__init__()
        self.conv1 = spconv.SubMConv3d(C, C, 3, padding=1, bias=True, indice_key=key)
        self.conv2 = spconv.SubMConv3d(C, C, 3, padding=1, bias=True, indice_key=key)
        self.bn1, self.bn2, self.relu = nn.BatchNorm1d(C), nn.BatchNorm1d(C), nn.ReLU(inplace=True)
        self.downsample = downsample

    def forward(self, x: Any) -> Any:
        identity = x
        out = self.conv1(x)
        out = replace(out, self.bn1(out.features))
        out = replace(out, self.relu(out.features))
        out = self.conv2(out)
        out = replace(out, self.bn2(out.features))
        if self.downsample is not None:
            identity = self.downsample(x)
        out = replace(out, out.features + identity.features)
        return replace(out, self.relu(out.features))


class Segmenting(Detecting):
    """In the manner of mmdetection3d's: norms by names, a check, the shortcut as features."""

    def __init__(self, downsample: Any = None) -> None:
        super().__init__(downsample)
        self.norm1_name, self.norm2_name = "bn1", "bn2"

    @property
    def norm1(self) -> Any:
        return getattr(self, self.norm1_name)

    @property
    def norm2(self) -> Any:
        return self.bn2

    def forward(self, x: Any) -> Any:
        past = x.features
        assert x.features.dim() == 2, f"of {x.features.dim()} modes"
        out = self.conv1(x)
        out = replace(out, self.norm1(out.features))
        out = replace(out, self.relu(out.features))
        out = self.conv2(out)
        out = replace(out, self.norm2(out.features))
        if self.downsample is not None:
            past = self.downsample(x).features
        out = replace(out, past + out.features)
        return replace(out, self.relu(out.features))


def shortcut() -> nn.Module:
    return spconv.SparseSequential(spconv.SubMConv3d(C, C, 1, bias=False), nn.BatchNorm1d(C))


def noted(out: Any) -> Any:
    SEEN.append(1)
    return out


def twice(out: Any, times: Any = SEEN) -> Any:
    return out


class Other(Detecting):
    """One convolution with what follows it; subclasses do something that a plan does not."""

    def forward(self, x: Any) -> Any:
        out = self.conv1(x)
        out = self.between(out)
        out = out.replace_feature(self.bn1(out.features))
        return out.replace_feature(self.relu(out.features))

    def between(self, out: Any) -> Any:
        return out


class Marks(Other):
    def between(self, out: Any) -> Any:
        noted.times = 1
        return out


class Keeps(Other):
    def between(self, out: Any) -> Any:
        self.kept = out
        return out


class Notes(Other):
    def between(self, out: Any) -> Any:
        return noted(out)


class Appends(Other):
    def between(self, out: Any) -> Any:
        SEEN.append(1)
        return out


class Defaults(Other):
    def between(self, out: Any) -> Any:
        return twice(out)


class Counts(Other):
    def between(self, out: Any) -> Any:
        return out if len(out.features) > 10 else self.conv2(out)


class Looks(Other):
    def between(self, out: Any) -> Any:
        return out if isinstance(self.bn1, nn.BatchNorm1d) else self.conv2(out)


class Compares(Other):
    def between(self, out: Any) -> Any:
        return self.conv2(out) if out is self.relu else out


class Catches(Other):
    def between(self, out: Any) -> Any:
        try:
            return out.replace_feature(out.features * 2)
        except ZeroDivisionError:
            return out


class Multiplies(Other):
    def between(self, out: Any) -> Any:
        return out.replace_feature(out.features * 0.5)


class InPlace(Other):
    """An activation that writes to what a convolution later reads."""

    def forward(self, x: Any) -> Any:
        out = self.conv1(x)
        past = self.relu(x.features)
        out = out.replace_feature(self.bn1(out.features))
        return out.replace_feature(out.features + past)


class Later(Other):
    """Features that are used again after what follows them."""

    def forward(self, x: Any) -> Any:
        out = self.conv1(x)
        y = out.replace_feature(self.bn1(out.features))
        y = y.replace_feature(y.features + out.features)
        return y.replace_feature(self.relu(y.features) + y.features)


class Adds(Other):
    """Sums of sparse tensors, a method, and another module that is given the same input."""

    def forward(self, x: Any) -> Any:
        y, z = self.conv1(x), self.conv2(x)
        y, z = self.after(y, True), self.after(z, False)
        return z + y

    def after(self, x: Any, first: bool) -> Any:
        norm = self.bn1 if first else self.bn2
        return x.replace_feature(norm(x.features))


class Closes(Other):
    def forward(self, x: Any) -> Any:
        return (lambda y: y.replace_feature(self.bn1(y.features)))(self.conv1(x))


class Conditional(Other):
    deep = True

    def __init__(self, downsample: Any = None) -> None:
        super().__init__(downsample)
        self.times = 1

    def forward(self, x: Any) -> Any:
        out = self.conv1(x)
        if self.times == 2 and self.deep:
            out = self.conv2(out)
        out = out.replace_feature(self.bn1(out.features))
        return out.replace_feature(self.relu(out.features)) if self.downsample is None else out


REFUSED = (
    Marks, Keeps, Notes, Appends, Defaults, Counts, Looks, Compares, Catches, Multiplies, Closes
)  # fmt: skip
PLANNED = {Later: 0, InPlace: 0, Adds: 0, Conditional: 1, Other: 1}  # and what is fused of them
