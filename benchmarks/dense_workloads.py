"""Which dense convolutions ``bench_dense.py`` measures, and what is to be reached on each."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from layoutconv.conv import ConvProblem

PASSES = ("fprop", "dgrad", "wgrad")


@dataclass(frozen=True)
class Workload:
    """A convolution of (N, *spatial, C) with filters (K, *taps, C / groups)."""

    name: str
    N: int
    C: int
    spatial: tuple[int, ...]
    K: int
    taps: tuple[int, ...]
    stride: int = 1
    padding: int = 1
    dilation: int = 1
    groups: int = 1

    @property
    def problem(self) -> ConvProblem:
        return ConvProblem(
            (self.N, *self.spatial, self.C),
            (self.K, *self.taps),
            self.stride,
            self.padding,
            self.dilation,
            self.groups,
        )

    @property
    def depthwise(self) -> bool:
        return self.groups == self.C > 1

    @property
    def voxels(self) -> tuple[int, ...]:
        """(Z, P, Q)."""
        return tuple(
            (cells + 2 * self.padding - self.dilation * (taps - 1) - 1) // self.stride + 1
            for cells, taps in zip(self.spatial, self.taps, strict=True)
        )

    @property
    def elements(self) -> int:
        """Elements of input, filter and output together: the least that moves."""
        taps = self.K * prod(self.taps) * self.C // self.groups
        return self.N * (prod(self.spatial) * self.C + prod(self.voxels) * self.K) + taps

    @property
    def flop(self) -> int:
        """Floating-point operations of any pass, padding counted: two per product."""
        return 2 * self.N * prod(self.voxels) * self.K * prod(self.taps) * self.C // self.groups


@dataclass(frozen=True)
class Job:
    """A row of the benchmark: what runs, in which type, beside whom.

    Attributes:
        kind: a pass; or "bias+relu", "statistics", "clamp" or "no loads", a forward pass with
            something more or less, beside our own bare one. "clamp" is a user's function.
        dtype: "fp16", "bf16", "tf32", "fp32" (exact), "e4m3", "e5m2" or "int8".
        target: the ratio that is to be reached, if there is one.
    """

    workload: Workload
    kind: str
    dtype: str
    target: float | None = None

    @property
    def name(self) -> str:
        return f"{self.workload.name} {self.kind} {self.dtype}"

    @property
    def direction(self) -> str:
        return self.kind if self.kind in PASSES else "fprop"


def _cube(name: str, N: int, C: int, spatial: tuple[int, ...], K: int, **more: int) -> Workload:
    return Workload(name, N, C, spatial, K, (3,) * len(spatial), **more)


DENSE = [
    _cube("unet_128", 2, 32, (128, 128, 128), 32),
    _cube("unet_64", 2, 64, (64, 64, 64), 64),
    _cube("unet_32", 2, 128, (32, 32, 32), 128),
    _cube("unet_16", 2, 256, (16, 16, 16), 256),
    _cube("unet_8", 2, 320, (8, 8, 8), 320),
    _cube("unet_down", 2, 32, (128, 128, 128), 64, stride=2),
    _cube("r3d_56", 8, 64, (8, 56, 56), 64),
    _cube("r3d_28", 8, 128, (4, 28, 28), 128),
    _cube("r3d_14", 8, 256, (2, 14, 14), 256),
    _cube("vae", 1, 256, (16, 64, 64), 256),
    _cube("vae_big", 1, 512, (8, 64, 64), 512),
    _cube("dilated", 2, 64, (32, 64, 64), 64, padding=2, dilation=2),
    _cube("resnet_56", 64, 64, (56, 56), 64),
    _cube("resnet_28", 64, 128, (28, 28), 128),
    _cube("resnet_14", 64, 256, (14, 14), 256),
    _cube("resnet_7", 64, 512, (7, 7), 512),
    Workload("resnet_1x1", 64, 64, (56, 56), 256, (1, 1), padding=0),
]  # fmt: skip
EXAMPLE_59 = _cube("unpadded", 131072, 64, (6, 4, 4), 128, padding=0)
FEW_CHANNELS = [_cube(f"few_{C}", 2, C, (64, 64, 64), 32) for C in (1, 3, 4, 5)]
NARROW = [  # of K or of C of 1 to 4: heads and stems of known networks
    Workload("narrow_head_32_3", 2, 32, (128, 128, 128), 3, (1, 1, 1), padding=0),
    Workload("narrow_head_64_2", 2, 64, (128, 128, 128), 2, (1, 1, 1), padding=0),
    Workload("narrow_head_48_1", 2, 48, (96, 96, 96), 1, (1, 1, 1), padding=0),
    _cube("narrow_image_last", 2, 128, (512, 512), 3),
    _cube("narrow_image_first", 2, 3, (512, 512), 128),
    _cube("narrow_latent_last", 4, 320, (64, 64), 4),
    _cube("narrow_latent_first", 4, 4, (64, 64), 320),
    _cube("narrow_video_last", 1, 96, (6, 480, 832), 3),
    Workload("narrow_wave_last", 16, 32, (65536,), 1, (7,), padding=3),
    Workload("narrow_stem_7x7", 64, 3, (224, 224), 64, (7, 7), stride=2, padding=3),
    Workload("narrow_stem_3x3", 128, 3, (224, 224), 32, (3, 3), stride=2),
    Workload("narrow_patch_4", 64, 3, (224, 224), 96, (4, 4), stride=4, padding=0),
    Workload("narrow_patch_16", 64, 3, (224, 224), 768, (16, 16), stride=16, padding=0),
    _cube("narrow_volume_1", 2, 1, (128, 128, 128), 32),
    _cube("narrow_volume_4", 2, 4, (128, 128, 128), 32),
]  # fmt: skip
GROUPED = [
    _cube("depthwise_3d", 2, 64, (32, 32, 32), 64, groups=64),
    Workload("depthwise_7x7", 32, 96, (56, 56), 96, (7, 7), padding=3, groups=96),
    _cube("grouped_3d", 2, 128, (32, 32, 32), 128, groups=4),
    _cube("resnext_56", 64, 128, (56, 56), 128, groups=32),
    _cube("resnext_56_down", 64, 256, (56, 56), 256, stride=2, groups=32),
    _cube("resnext_28", 64, 256, (28, 28), 256, groups=32),
    _cube("resnext_28_down", 64, 512, (28, 28), 512, stride=2, groups=32),
    _cube("resnext_14", 64, 512, (14, 14), 512, groups=32),
    _cube("resnext_14_down", 64, 1024, (14, 14), 1024, stride=2, groups=32),
    _cube("resnext_7", 64, 1024, (7, 7), 1024, groups=32),
    _cube("regnet_8x13", 64, 104, (28, 28), 104, groups=13),  # RegNetY-400MF: groups of 8
    _cube("regnet_16x14", 64, 224, (28, 28), 224, groups=14),  # 800MF: of 16
    _cube("regnet_24x14", 64, 336, (14, 14), 336, groups=14),  # 1.6GF: of 24
    _cube("regnet_48x9", 64, 432, (14, 14), 432, groups=9),  # RegNetX-3.2GF: of 48
]
QUICK = {
    *("unet_64", "unet_8", "unet_down", "r3d_28", "vae", "resnet_56"),
    *("few_3", "depthwise_3d", "grouped_3d"),
}


def jobs(quick: bool = False) -> list[Job]:
    """Every row, in the order in which it is printed; ``quick``: those of a few workloads."""
    by_name = {w.name: w for w in DENSE}
    # To be reached in a first, untuned version: 0.4 of cuDNN; 1 where cuDNN is weak itself.
    weak = {("unet_down", "dgrad", "fp16")}
    rows = [
        Job(w, kind, dtype, 1.0 if (w.name, kind, dtype) in weak else 0.4)
        for dtype in ("fp16", "tf32")
        for w in DENSE
        for kind in PASSES
    ]
    rows += [Job(EXAMPLE_59, "dgrad", "fp16", 1.0), Job(EXAMPLE_59, "fprop", "fp16")]
    for name in ("vae", "r3d_28", "unet_64"):
        rows.append(Job(by_name[name], "bias+relu", "fp16", 0.97))
        rows.append(Job(by_name[name], "statistics", "fp16", 0.95))
        rows.append(Job(by_name[name], "clamp", "fp16", 0.97))
    for name in ("vae", "r3d_28"):
        rows += [Job(by_name[name], "fprop", dtype) for dtype in ("bf16", "fp32")]
        rows += [Job(by_name[name], "fprop", dtype) for dtype in ("e4m3", "e5m2", "int8")]
    rows += [Job(w, kind, "fp16") for w in (*FEW_CHANNELS, *NARROW, *GROUPED) for kind in PASSES]
    rows += [Job(by_name[name], "no loads", "fp16") for name in ("vae", "resnet_56")]
    return [row for row in rows if not quick or row.workload.name in QUICK]
