"""Python code of random networks: classes as people write them, which is run and printed.

A generated class has an attribute for each module and a forward pass of one line for each step, so
that ``torch.fx`` records what it would of anybody's network.
"""

from __future__ import annotations

from typing import Any

import torch

from .network_program import Program, Shape, Step, has_module, options_of

_NORMS = {"batch": "BatchNorm", "instance": "InstanceNorm"}
_ACTIVATIONS = {
    "relu": ("ReLU", "F.relu"), "relu6": ("ReLU6", "F.relu6"), "silu": ("SiLU", "F.silu"),
    "hardswish": ("Hardswish", "F.hardswish"), "gelu": ("GELU", "F.gelu"),
    "leaky_relu": ("LeakyReLU", "F.leaky_relu"), "sigmoid": ("Sigmoid", "torch.sigmoid"),
    "tanh": ("Tanh", "torch.tanh"),
}  # fmt: skip
HAS_INPLACE = frozenset(("relu", "relu6", "silu", "hardswish", "leaky_relu"))
HEAD = "import torch\nimport torch.nn.functional as F\nfrom torch import nn\n"


def module_text(one: Step, x: Shape, rank: int) -> str:
    """The expression that makes a step's module."""
    op, o = one[0], options_of(one)
    if op in ("conv", "transposed"):
        kind = f"nn.Conv{'Transpose' if op == 'transposed' else ''}{rank}d"
        names = ("stride", "padding", "dilation", "groups", "bias", "output_padding")
        plain = {"stride": (1,), "padding": (0,), "dilation": (1,), "output_padding": (0,)}
        given = [f"{n}={o[n]}" for n in names if n in o and o[n] != plain.get(n, (None,)) * rank]
        given = [g for g in given if g not in ("groups=1", "bias=True")]
        if o.get("mode", "zeros") != "zeros":
            given.append(f"padding_mode={o['mode']!r}")
        text = f"{kind}({x.C}, {o['K']}, {', '.join([str(o['taps']), *given])})"
        return f"nn.utils.parametrizations.weight_norm({text})" if o.get("weight_norm") else text
    if op == "norm":
        if o["kind"] in _NORMS:
            given = [f"{n}={o[m]}" for n, m in (("affine", "affine"), ("momentum", "momentum"),
                     ("track_running_stats", "tracks"))]  # fmt: skip
            return f"nn.{_NORMS[o['kind']]}{rank}d({x.C}, {', '.join(given)})"
        return f"nn.GroupNorm({o['groups']}, {x.C}, affine={o['affine']})"
    if op == "act":
        inplace = "inplace=True" if o["form"] == "module inplace" else ""
        return f"nn.{_ACTIVATIONS[o['kind']][0]}({inplace})"
    if op == "pool":
        kind = {"max": "MaxPool", "mean": "AvgPool"}[o["kind"]]
        text = f"{o['taps']}, {o['stride']}, {o['padding']}, ceil_mode={o['ceil']}"
        return f"nn.{kind}{rank}d({text})"
    if op == "squeeze":
        return f"nn.AdaptiveAvgPool{rank}d(1)"
    if op == "up":
        return f"nn.Upsample(scale_factor=2, mode={interpolation(o['mode'], rank)!r})"
    return {"identity": "nn.Identity()", "dropout": "nn.Dropout(0.0)"}[o["kind"]]


def interpolation(mode: str, rank: int) -> str:
    """The name that torch has for a mode of interpolation."""
    return mode if mode == "nearest" else ("linear", "bilinear", "trilinear")[rank - 1]


def step_lines(number: int, one: Step, rank: int, called: str) -> list[str]:
    """The lines of a forward pass that compute value ``number + 1``."""
    op, of, o = one[0], [f"v{value}" for value in one[1]], options_of(one)
    made = f"v{number + 1}"
    if op == "shared":
        return [f"{made} = self.m{o['at']}({of[0]})"]
    if has_module(one):
        return [f"{made} = {called}({of[0]})"]
    if op == "act":
        name, function = o["kind"], _ACTIVATIONS[o["kind"]][1]
        call = {
            "function": f"{function}({of[0]})",
            "function inplace": f"{function}({of[0]}, inplace=True)",
            "method": f"{of[0]}.relu()" if name == "relu" else f"{function}({of[0]})",
            "method inplace": f"{of[0]}.relu_()",
        }[o["form"]]
        return [f"{made} = {call}"]
    if op == "add":
        if o["form"] == "+=":
            return [f"{of[0]} += {of[1]}", f"{made} = {of[0]}"]
        text = f"torch.add({of[0]}, {of[1]})" if o["form"] == "function" else " + ".join(of)
        return [f"{made} = {text}"]
    texts = {
        "mul": " * ".join(of),
        "cat": f"torch.cat([{', '.join(of)}], 1)",
        "like": f"F.interpolate({of[0]}, size={of[-1]}.shape[2:], mode="
        f"{interpolation(o.get('mode', 'nearest'), rank)!r})",
        "slice": f"{of[0]}[:, {o.get('begin')}:{o.get('end')}]",
        "scale": f"{of[0]} * {o.get('by')}",
        "head": f"self.m{number}({of[0]}.mean({tuple(range(2, rank + 2))}))",
    }
    return [f"{made} = {texts[op]}"]


def runs_of(program: Program) -> list[list[int]]:
    """Steps that a ``Sequential`` could be: each alone reads what the one before made."""
    shared = {options_of(one)["at"] for one in program if one[0] == "shared"}
    users = [sum(value in one[1] for one in program) for value in range(len(program) + 1)]
    runs: list[list[int]] = []
    for number, one in enumerate(program):
        free = has_module(one) and number not in shared
        last = runs[-1][-1] if runs else -1
        follows = number > 0 and last == number - 1 and one[1] == (number,) and users[number] == 1
        before = program[number - 1] if number else one
        if free and follows and has_module(before) and number - 1 not in shared:
            runs[-1].append(number)
        else:
            runs.append([number])
    return runs


def class_text(name: str, program: Program, shapes: list[Shape], rank: int, packed: bool) -> str:
    """A module's class; ``packed``: modules that follow each other are in a ``Sequential``."""
    first, lines = [], []
    for run in runs_of(program) if packed else [[n] for n in range(len(program))]:
        made = [module_text(program[n], shapes[program[n][1][0]], rank)
                for n in run if has_module(program[n])]  # fmt: skip
        if len(run) > 1:
            parts = ",\n            ".join(made)
            first.append(f"self.s{run[0]} = nn.Sequential(\n            {parts},\n        )")
            lines.append(f"v{run[-1] + 1} = self.s{run[0]}(v{program[run[0]][1][0]})")
            continue
        number, one = run[0], program[run[0]]
        if made:
            first.append(f"self.m{number} = {made[0]}")
        elif one[0] == "head":
            first.append(f"self.m{number} = nn.Linear({shapes[one[1][0]].C}, "
                         f"{options_of(one)['K']})")  # fmt: skip
        lines += step_lines(number, one, rank, f"self.m{number}")
    body = "\n        ".join(["super().__init__()", *first])
    forward = "\n        ".join([*lines, f"return v{len(program)}"])
    return (f"class {name}(nn.Module):\n    def __init__(self):\n        {body}\n\n"
            f"    def forward(self, v0):\n        {forward}\n")  # fmt: skip


def network_text(classes: list[str], order: tuple[int, ...], *, sequential: bool) -> str:
    """All classes, and ``net``; a block that ``order`` has twice is one module that is called
    twice."""
    if sequential and len(set(order)) == len(order):
        blocks = ", ".join(f"Block{number}()" for number in order)
        return "\n\n".join([HEAD, *classes, f"net = nn.Sequential({blocks})\n"])
    names = "\n        ".join(f"self.b{n} = Block{n}()" for n in dict.fromkeys(order))
    calls = "\n        ".join(f"x = self.b{number}(x)" for number in order)
    net = (f"class Net(nn.Module):\n    def __init__(self):\n        super().__init__()\n"
           f"        {names}\n\n    def forward(self, x):\n        {calls}\n        return x\n\n\n"
           "net = Net()\n")  # fmt: skip
    return "\n\n".join([HEAD, *classes, net])


def built(text: str, seed: int) -> Any:
    """The network that code makes, with the weights of a seed."""
    space: dict[str, Any] = {"__name__": "network"}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        exec(compile(text, "<network>", "exec"), space)
    return space["net"]
