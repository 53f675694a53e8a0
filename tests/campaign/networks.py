"""Small networks: what there is to choose of them, and what a seed chooses.

The interplay of convert, fold, fuse, graphs and autocast over whole networks, which no single layer
shows. Five seeds in a row have one network, with other weights, sizes and *roads*: what is done
to the network before it runs.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from typing import ClassVar

from .budget import kind_of
from .draws import Draw
from .network_blocks import draw_block
from .network_program import OPTIONS, Program, Shape, Step, shapes_of, step
from .network_source import class_text, network_text

TYPES = {"cpu": {"float64": 55, "float32": 25, "float16": 4, "bfloat16": 4, "float16 autocast": 4,
                 "bfloat16 autocast": 8},
         "gpu": {"float32": 30, "float16": 20, "bfloat16": 10, "float16 autocast": 25,
                 "bfloat16 autocast": 15}}  # fmt: skip
CHANNELS = {"gpu": (1, 3, 4, 8, 16, 32), "large": (3, 8, 16, 32, 64)}
EXTENTS = {"gpu": {1: 96, 2: 20, 3: 10}, "large": {1: 2048, 2: 96, 3: 32}}
# What is done to a network, in any order, and how often.
ROADS = {"convert": 0.9, "fuse": 0.45, "channels_last": 0.3, "copy": 0.25, "state": 0.15,
         "revert": 0.08, "swap": 0.08}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Network:
    """A network, and what is done with it.

    Args:
        rank, C: of the images that are put in.
        blocks: a program each, as ``network_program`` has them.
        order: the numbers of blocks in the order of their calls.
        packed: of each block, whether modules that follow each other are in a ``Sequential``.
        sequential: whether the network is one itself.
        type: of the numbers; "float16 autocast" is float32 under autocast.
        sizes: the cells of an image, of one call after the other.
        images: in each call.
        calls: how many there are.
        training: in training with steps of an optimizer; else evaluation.
        gradients: whether evaluation records them.
        every: calls until the optimizer steps.
        roads: what is done first, in this order.
        graph: whether calls go through ``graphed`` or ``graphed_step``.
        fixed: the share of parameters that want no gradient.
        frozen: the share of batch norms that stay in evaluation.
        hooked: the number of a module that has a hook, or -1.
        memory: the order of images in memory: "first", "last", or "sliced".
    """

    family: ClassVar[str] = "networks"
    seed: int
    rank: int = 2
    C: int = 3
    blocks: tuple[Program, ...] = ()
    order: tuple[int, ...] = ()
    packed: tuple[bool, ...] = ()
    sequential: bool = False
    type: str = "float64"
    sizes: tuple[tuple[int, ...], ...] = ((8, 8),)
    images: int = 2
    calls: int = 1
    training: bool = False
    gradients: bool = False
    every: int = 1
    roads: tuple[str, ...] = ()
    graph: bool = False
    fixed: float = 0.0
    frozen: float = 0.0
    hooked: int = -1
    memory: str = "first"
    numbers: ClassVar[str] = "normal"

    @property
    def kind(self) -> str:
        """A word on what it is, for the summary."""
        graph = " graphed" if self.graph else ""
        return f"dense {self.rank}-D {'training' if self.training else 'evaluation'}{graph}"

    def text(self) -> str:
        """Python code of the network."""
        shapes = all_shapes(self)
        assert shapes is not None
        classes = [
            class_text(f"Block{n}", self.blocks[n], shapes[n], self.rank, self.packed[n])
            for n in dict.fromkeys(self.order)
        ]
        return network_text(classes, self.order, sequential=self.sequential)


def draw_network(seed: int, size: str = "gpu") -> Network:
    """The problem of a seed; ``size`` is a name of ``BUDGETS``.

    >>> draw_network(3) == draw_network(3), draw_network(3).blocks == draw_network(4).blocks
    (True, True)
    """
    network = _draw_blocks(Draw("network kind", kind_of(seed)), size)
    return _draw_roads(network, Draw("network roads", seed), size, seed)


def _draw_blocks(draw: Draw, size: str) -> Network:
    rank = draw.weighted({1: 20, 2: 55, 3: 25})
    channels = CHANNELS.get(size, (1, 2, 3, 4, 6, 8))
    C, images = draw.of((1, 3, 3, *channels)), draw.weighted({1: 15, 2: 55, 3: 30})
    most = EXTENTS.get(size, {1: 24, 2: 11, 3: 6})[rank]
    sizes = tuple(
        tuple(draw.int(most // 2 + 1, most) for _ in range(rank)) for _ in range(draw.int(1, 2))
    )
    shape = Shape(C, sizes)
    blocks: list[Program] = []
    order: list[int] = []
    for _ in range(draw.int(1, 4)):
        block, out = draw_block(draw, shape, images, channels)
        blocks.append(block)
        order.append(len(blocks) - 1)
        if out == shape and draw.chance(0.15):  # the same module once more
            order.append(order[-1])
        shape = out
    if draw.chance(0.2):
        blocks[-1] = (*blocks[-1], step("head", (len(blocks[-1]),), K=5))
        order = [n for i, n in enumerate(order) if n != len(blocks) - 1 or n not in order[:i]]
    types = TYPES["cpu" if size in ("cpu", "tiny") else "gpu"]
    return Network(
        seed=0, rank=rank, C=C, blocks=tuple(blocks), order=tuple(order), images=images,
        packed=tuple(draw.chance(0.6) for _ in blocks), sequential=draw.chance(0.5),
        type=draw.weighted(types), sizes=sizes,
    )  # fmt: skip


def _draw_roads(p: Network, draw: Draw, size: str, seed: int) -> Network:
    """Draw what is done with the network; everything that kernels do not depend on, too."""
    training = draw.chance(0.55)
    roads = draw.shuffled([name for name, share in ROADS.items() if draw.chance(share)])
    if "swap" in roads and "fuse" not in roads:
        roads.remove("swap")
    if not training and draw.chance(0.65):
        roads.insert(draw.int(0, len(roads)), "fold")
        roads = [name for name in roads if name not in ("revert", "swap")]
    memory = draw.weighted({"first": 45, "last": 40, "sliced": 15})
    if _has_own_norms(p) and ("convert" not in roads or "revert" in roads):
        # torch's gradients of such norms of ``channels_last`` images on a CPU are wrong, or end
        # the process (2.13).
        memory, roads = "first", [name for name in roads if name != "channels_last"]
    most = max(len(p.sizes), 2)
    calls = draw.int(2, 4) if training else draw.int(1, 1 + most)
    gradients = not training and draw.chance(0.3)
    return replace(
        p, seed=seed, roads=tuple(roads), training=training, calls=calls, gradients=gradients,
        every=draw.weighted({1: 70, 2: 30}) if training else 1, graph=draw.chance(0.35),
        fixed=draw.of((0.0, 0.0, 0.0, 0.3, 1.0)) if training else 0.0,
        frozen=draw.of((0.0, 0.0, 0.0, 0.4, 1.0)) if training else 0.0,
        hooked=draw.int(0, 20) if draw.chance(0.06) else -1,
        memory=memory,
    )  # fmt: skip


def _has_own_norms(p: Network) -> bool:
    """Return whether group or instance norms are among the steps."""
    norms = [dict(one[2]).get("kind") for block in p.blocks for one in block if one[0] == "norm"]
    return bool({"group", "instance"} & set(norms))


def all_shapes(p: Network) -> dict[int, list[Shape]] | None:
    """The shapes of the values of every block; None where they do not fit together."""
    shape, found = Shape(p.C, p.sizes), dict[int, list[Shape]]()
    for number in p.order:
        shapes = shapes_of(p.blocks[number], shape, p.images)
        if shapes is None or found.setdefault(number, shapes) != shapes:
            return None
        shape = shapes[-1]
        if len(shape.cells[0]) != p.rank and (number != p.order[-1] or "head" not in [
            one[0] for one in p.blocks[number][-1:]
        ]):  # fmt: skip
            return None
    return found


def fits(p: Network) -> bool:
    """Return whether torch takes the network: shapes fit, and steps write what they may."""
    steps = bool(p.order) and all(p.blocks[number] for number in p.order)
    return steps and p.images > 0 and p.calls > 0 and all_shapes(p) is not None


# -- smaller ones ----------------------------------------------------------------------------------


def smaller_network(p: Network) -> Iterator[Network]:
    """Networks with less of one thing, the most drastic first."""
    plain = {field.name: field.default for field in fields(p)}
    for at in range(len(p.order)):
        yield replace(p, order=(*p.order[:at], *p.order[at + 1 :]))
    unused = set(range(len(p.blocks))) - set(p.order)
    if unused:
        kept = sorted(set(p.order))
        yield replace(p, blocks=tuple(p.blocks[n] for n in kept),
                      packed=tuple(p.packed[n] for n in kept),
                      order=tuple(map(kept.index, p.order)))  # fmt: skip
    for number in dict.fromkeys(p.order):
        for block in _smaller_programs(p.blocks[number]):
            yield replace(p, blocks=(*p.blocks[:number], block, *p.blocks[number + 1 :]))
    same = tuple(tuple(_with_channels(one, p.C) for one in block) for block in p.blocks)
    if same != p.blocks:
        yield replace(p, blocks=same)
    for at in range(len(p.roads)):
        yield replace(p, roads=(*p.roads[:at], *p.roads[at + 1 :]))
    for name in ("graph", "training", "gradients", "every", "fixed", "frozen", "hooked", "memory",
                 "sequential", "calls"):  # fmt: skip
        if getattr(p, name) != plain[name]:
            yield replace(p, **{name: plain[name]})
    for at, packed in enumerate(p.packed):
        if packed and at in p.order:
            yield replace(p, packed=(*p.packed[:at], False, *p.packed[at + 1 :]))
    if len(p.sizes) > 1:
        yield replace(p, sizes=p.sizes[:1])
    if p.images > 1:
        yield replace(p, images=1)
    for extent in (1, 2, 4):
        lower = tuple(tuple(min(extent, e) for e in size) for size in p.sizes)
        if lower != p.sizes:
            yield replace(p, sizes=lower)


def _with_channels(one: Step, C: int) -> Step:
    """A step with another number of channels, in one group."""
    op, of, options = one
    return op, of, tuple((n, C if n == "K" else v) for n, v in options if n != "groups")


def _smaller_programs(program: Program) -> Iterator[Program]:
    """Programs without one step, or with an option at its default."""
    for gone in reversed(range(len(program))):
        for instead in dict.fromkeys(program[gone][1]):
            yield without(program, gone, instead)
    for number, (op, of, options) in enumerate(program):
        for name, _ in options:
            if OPTIONS[op][name] not in ((), 1):
                rest = tuple(pair for pair in options if pair[0] != name)
                yield (*program[:number], (op, of, rest), *program[number + 1 :])


def without(program: Program, gone: int, instead: int) -> Program:
    """A program without a step, whose users read ``instead`` of its result."""

    def moved(value: int) -> int:
        return instead if value == gone + 1 else value - (value > gone + 1)

    found = []
    for number, (op, of, options) in enumerate(program):
        if number == gone:
            continue
        if op == "shared" and dict(options).get("at", 0) == gone:
            op, options = program[gone][0], program[gone][2]
        elif "at" in dict(options):
            options = tuple((n, v - (v > gone) if n == "at" else v) for n, v in options)
        found.append((op, tuple(map(moved, of)), options))
    return tuple(found)
