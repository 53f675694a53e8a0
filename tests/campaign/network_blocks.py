"""Draw blocks of dense networks: those that real networks have, and steps at random."""

from __future__ import annotations

from typing import Any

from .draws import Draw
from .network_program import Program, Shape, Step, shapes_of, step
from .network_source import HAS_INPLACE

ACTIVATIONS = {"relu": 48, "relu6": 10, "silu": 12, "hardswish": 10, "gelu": 7, "leaky_relu": 8,
               "tanh": 5}  # fmt: skip
FORMS = {"module": 40, "module inplace": 30, "function": 12, "function inplace": 8, "method": 5,
         "method inplace": 5}  # fmt: skip
NORMS = {"batch": 74, "instance": 8, "group": 12, "none": 6}
CHANNELS = (1, 2, 3, 4, 6, 8)


class Builder:
    """Steps of a block as they are drawn; a step that takes no such values is not there."""

    def __init__(self, draw: Draw, first: Shape, images: int, channels: tuple[int, ...]) -> None:
        self.draw, self.rank, self.images = draw, len(first.cells[0]), images
        self.channels, self.steps = channels, list[Step]()
        self.shapes, self.activation = [first], draw.weighted(ACTIVATIONS)
        self.norm_kind = draw.weighted(NORMS)
        self.form = draw.weighted(FORMS)
        self.bias = draw.chance(0.35)

    @property
    def last(self) -> int:
        return len(self.steps)

    def add(self, op: str, *of: int, **options: Any) -> int:
        """The number of a step's result; of its first operand where it is left out."""
        one = step(op, of, **options)
        shapes = shapes_of((*self.steps, one), self.shapes[0], self.images)
        if shapes is None or max(map(_volume, shapes)) > 4096:
            return of[0]
        self.steps.append(one)
        self.shapes = shapes
        return len(self.steps)

    def conv(self, v: int, K: int = 0, tap: int = 0, stride: int = 1, **options: Any) -> int:
        """A convolution that keeps the cells, but for its stride."""
        draw, rank = self.draw, self.rank
        taps = (tap or draw.weighted({1: 30, 3: 55, 2: 5, 5: 10}),) * rank
        if not tap and draw.chance(0.1):
            taps = tuple(draw.of((1, 3)) for _ in range(rank))
        dilation = 2 if stride == 1 and draw.chance(0.08) else 1
        given = {
            "K": K or draw.of(self.channels), "taps": taps, "stride": (stride,) * rank,
            "dilation": (dilation,) * rank, "padding": tuple(dilation * (t - 1) // 2 for t in taps),
            "bias": self.bias if draw.chance(0.9) else not self.bias,
            "mode": draw.weighted({"zeros": 92, "reflect": 3, "replicate": 3, "circular": 2}),
            "weight_norm": draw.chance(0.015), **options,
        }  # fmt: skip
        if "groups" not in options and draw.chance(0.12):
            of = [g for g in (2, 3, 4) if not self.shapes[v].C % g and not given["K"] % g]
            given["groups"] = draw.of(of) if of else 1
        return self.add("conv", v, **given)

    def pool(self, v: int, kind: str, tap: int, stride: int, padding: int = 0) -> int:
        each = {name: (number,) * self.rank for name, number in
                (("taps", tap), ("stride", stride), ("padding", padding))}  # fmt: skip
        return self.add("pool", v, kind=kind, ceil=self.draw.chance(0.2), **each)

    def norm(self, v: int) -> int:
        draw, kind = self.draw, self.norm_kind
        if kind == "none":
            return v
        group = draw.of([g for g in (1, 2, 3, 4) if not self.shapes[v].C % g])
        of = {"group": {"groups": group}, "instance": {
            "affine": draw.chance(0.5), "tracks": draw.chance(0.2)}, "batch": {
            "affine": draw.chance(0.93), "tracks": draw.chance(0.95),
            "momentum": draw.weighted({0.1: 90, 0.3: 5, None: 5})}}  # fmt: skip
        return self.add("norm", v, kind=kind, **of[kind])

    def act(self, v: int, kind: str = "") -> int:
        kind = kind or self.activation
        form = self.form if self.draw.chance(0.85) else self.draw.weighted(FORMS)
        if form.startswith("method") and kind != "relu":
            form = "function" + form.removeprefix("method")
        if form.endswith("inplace") and kind not in HAS_INPLACE:
            form = form.split()[0]
        made = self.add("act", v, kind=kind, form=form)
        return made if made != v else self.add("act", v, kind=kind, form=form.split()[0])

    def sum(self, a: int, b: int) -> int:
        form = self.draw.weighted({"operator": 60, "function": 15, "+=": 25})
        made = self.add("add", a, b, form=form)
        return made if made != a else self.add("add", a, b)

    def layer(self, v: int, K: int = 0, act: bool = True, **options: Any) -> int:
        """A convolution, a norm and an activation."""
        v = self.norm(self.conv(v, K, **options))
        return self.act(v) if act else v

    @property
    def C(self) -> int:
        return self.shapes[-1].C


def _volume(shape: Shape) -> int:
    cells = shape.cells[0]
    found = shape.C
    for extent in cells:
        found *= extent
    return found


# -- blocks of real networks -----------------------------------------------------------------------


def plain(b: Builder) -> None:
    """Layers one after the other."""
    v = 0
    for _ in range(b.draw.int(1, 3)):
        v = b.layer(v, stride=b.draw.weighted({1: 70, 2: 30}))


def residual(b: Builder) -> None:
    """A ResNet's: the shortcut as it is, or a convolution with a norm."""
    draw, C = b.draw, b.shapes[0].C
    if draw.chance(0.35):
        K, stride = draw.of(b.channels), draw.of((1, 2))
        down = (lambda: b.layer(0, K, act=False, tap=1, stride=stride)) if draw.chance(0.6) else (
            lambda: b.norm(b.conv(b.pool(0, "mean", 2, stride), K, 1)))  # fmt: skip
    else:
        K, stride, down = C, 1, lambda: 0
    early = draw.chance(0.4)
    short = down() if early else 0
    v = b.layer(0, tap=3, stride=stride)
    v = b.layer(v, tap=1) if draw.chance(0.3) else v
    v = b.layer(v, K, act=False, tap=3)
    v = gate(b, v) if draw.chance(0.15) else v
    short = short if early else down()
    v = b.sum(v, short) if draw.chance(0.75) else b.sum(short, v)
    if draw.chance(0.8):
        b.act(v)


def inverted(b: Builder) -> None:
    """A MobileNet's: widen, depthwise, perhaps a gate, narrow, and the sum without activation."""
    C = b.shapes[0].C
    wide = 2 * C
    v = b.layer(0, wide, tap=1)
    v = b.layer(v, wide, tap=3, groups=wide, stride=b.draw.weighted({1: 70, 2: 30}))
    v = gate(b, v) if b.draw.chance(0.5) else v
    v = b.layer(v, C, act=False, tap=1)
    b.sum(v, 0) if b.draw.chance(0.5) else b.sum(0, v)


def gate(b: Builder, v: int) -> int:
    """Squeeze and excite."""
    C = b.shapes[v].C
    w = b.add("squeeze", v)
    w = b.conv(w, max(1, C // 2), 1, mode="zeros")
    w = b.add("act", w, kind="relu", form="module inplace")
    w = b.conv(w, C, 1, mode="zeros")
    w = b.add("act", w, kind="sigmoid", form=b.draw.of(("module", "function")))
    return b.add("mul", v, w)


def preactivated(b: Builder) -> None:
    """Norm, activation, convolution; then the sum."""
    v = b.conv(b.act(b.norm(0)), tap=3)
    v = b.conv(b.act(b.norm(v)), b.shapes[0].C, 3)
    b.sum(v, 0)


def unet(b: Builder) -> None:
    """Down, a layer, up again, and the skip beside it."""
    draw, rank = b.draw, b.rank
    skip = b.layer(0)
    if draw.chance(0.5):
        v = b.layer(skip, tap=draw.of((2, 3)), stride=2)
    else:
        v = b.pool(skip, draw.of(("max", "mean")), 2, 2)
    v = b.layer(v)
    how = draw.of(("transposed", "up", "like"))
    if how == "transposed":
        tap = draw.of((2, 3, 4))
        v = b.add("transposed", v, K=draw.of(b.channels), taps=(tap,) * rank, stride=(2,) * rank,
                  dilation=(1,) * rank, padding=((tap - 1) // 2,) * rank, bias=b.bias,
                  output_padding=(tap % 2,) * rank)  # fmt: skip
        v = b.act(b.norm(v)) if draw.chance(0.6) else v
    mode = draw.of(("nearest", "linear"))
    v = b.add("up", v, mode=mode) if how == "up" else v
    if b.shapes[v].cells != b.shapes[skip].cells:
        v = b.add("like", v, skip, mode=mode)
    v = b.add("cat", v, skip) if draw.chance(0.7) else b.sum(b.conv(v, b.shapes[skip].C, 1), skip)
    b.layer(v)


def concatenated(b: Builder) -> None:
    """A DenseNet's, or branches side by side."""
    if b.draw.chance(0.5):
        v = b.conv(b.act(b.norm(0)))
        b.add("cat", 0, v)
        return
    tops = [b.layer(0, tap=tap) for tap in (1, 3)]
    b.add("cat", *tops)
    if b.draw.chance(0.5):
        b.act(b.norm(b.last))


def split(b: Builder) -> None:
    """Half of the channels through a layer, and the other half beside them."""
    C = b.shapes[0].C
    half = C // 2
    if not half:
        plain(b)
        return
    left = b.add("slice", 0, begin=0, end=half)
    right = b.layer(b.add("slice", 0, begin=half, end=C), half)
    b.add("cat", left, right)


def pooled(b: Builder) -> None:
    """A pool before a layer."""
    b.layer(b.pool(0, b.draw.of(("max", "mean")), 3, b.draw.of((1, 2)), 1))


def anything(b: Builder) -> None:
    """Steps at random, on values at random: what no network has, and ``torch.fx`` records."""
    draw = b.draw
    for _ in range(draw.int(3, 9)):
        near = [b.last, max(0, b.last - 1), draw.int(0, b.last)]
        v, w = draw.of(near), draw.of(near)
        same = [i for i, s in enumerate(b.shapes) if s == b.shapes[v]]
        shared = [i for i, s in enumerate(b.steps) if s[0] in ("conv", "norm", "act")]
        op = draw.weighted({"conv": 24, "norm": 22, "act": 22, "sum": 18, "cat": 3, "same": 3,
                            "scale": 3, "mul": 2, "shared": 5})  # fmt: skip
        if op == "conv":
            b.conv(v, b.shapes[v].C if draw.chance(0.6) else 0)
        elif op in ("norm", "act"):
            getattr(b, op)(v)
        elif op == "sum":
            b.sum(v, draw.of(same))
        elif op in ("cat", "mul"):
            b.add(op, v, w)
        elif op == "same":
            b.add("same", v, kind=draw.of(("identity", "dropout")))
        elif op == "scale":
            b.add("scale", v, by=draw.of((0.5, 2.0)))
        elif shared:
            b.add("shared", v, at=draw.of(shared))


BLOCKS = {
    plain: 14, residual: 22, inverted: 12, preactivated: 8, unet: 10, concatenated: 6, split: 4,
    pooled: 4, anything: 20,
}  # fmt: skip


def draw_block(
    draw: Draw, first: Shape, images: int, channels: tuple[int, ...]
) -> tuple[Program, Shape]:
    """The steps of a block, and the shape that comes out."""
    for _ in range(20):
        b = Builder(draw, first, images, channels)
        draw.weighted(BLOCKS)(b)
        if b.steps:
            return tuple(b.steps), b.shapes[-1]
    one = step("act", (0,), kind="relu")
    return (one,), first
