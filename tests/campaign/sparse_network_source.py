"""Python code of random sparse networks, in the names of ``lc.nn`` or of spconv."""

from __future__ import annotations

from typing import Any

from .network_program import Program
from .sparse_program import Level, Value, has_module, options_of

HEADS = {
    "lc": "import torch\nimport torch.nn.functional as F\nfrom torch import nn\n"
    "import layoutconv as lc\n",
    "spconv": "import torch\nimport torch.nn.functional as F\nfrom torch import nn\n"
    "import layoutconv.compat.spconv.pytorch as spconv\n",
}
_NAMES = {
    "lc": {"subm": "lc.nn.SubmConv", "down": "lc.nn.SparseConv", "up": "lc.nn.SparseConvTranspose",
           "inverse": "lc.nn.SparseInverseConv", "max": "lc.nn.SparseMaxPool",
           "mean": "lc.nn.SparseAvgPool", "sequence": "lc.nn.Sequential", "new": "replace"},
    "spconv": {"subm": "spconv.SubMConv", "down": "spconv.SparseConv",
               "up": "spconv.SparseConvTranspose", "inverse": "spconv.SparseInverseConv",
               "max": "spconv.SparseMaxPool", "mean": "spconv.SparseAvgPool",
               "sequence": "spconv.SparseSequential", "new": "replace_feature"},
}  # fmt: skip
_ACTIVATIONS = {
    "relu": ("ReLU", "F.relu"),
    "silu": ("SiLU", "F.silu"),
    "leaky_relu": ("LeakyReLU", "F.leaky_relu"),
    "gelu": ("GELU", "F.gelu"),
}


def path_of(program: Program, number: int, packed: bool) -> str:
    """The name of a step's module in the network."""
    for run in runs_of(program) if packed else []:
        if number in run and len(run) > 1:
            return f"s{run[0]}.{run.index(number)}"
    return f"m{number}"


def runs_of(program: Program) -> list[list[int]]:
    """Steps that a ``Sequential`` of modules could be."""
    shared = {options_of(one)["at"] for one in program if one[0] == "shared"}
    users = [sum(value in one[1] for one in program) for value in range(len(program) + 1)]
    runs: list[list[int]] = []
    for number, one in enumerate(program):
        before = program[number - 1] if number else None
        joins = (
            before is not None and runs[-1][-1] == number - 1 and users[number] == 1
            and one[1] == (number,) and has_module(one) and has_module(before)
            and not {number, number - 1} & shared
        )  # fmt: skip
        if joins:
            runs[-1].append(number)
        else:
            runs.append([number])
    return runs


def module_text(program: Program, number: int, values: list[Value], names: str, rank: int) -> str:
    """The expression that makes a step's module."""
    one = program[number]
    op, o, x, of = one[0], options_of(one), values[one[1][0]], _NAMES[names]
    keys = names == "spconv"
    if op == "residual":
        return _residual(o, x, names, rank)
    if op == "subm":
        key = f", indice_key='subm{x.level} {o['taps']} {o['dilation']}'" if keys else ""
        return (f"{of[op]}{rank}d({x.C}, {o['K']}, {o['taps']}, dilation={o['dilation']}, "
                f"groups={o['groups']}, bias={o['bias']}{key})")  # fmt: skip
    if op in ("down", "up"):
        key = f", indice_key='{op}{number}'" if keys else ""
        more = f"dilation={o['dilation']}, " if op == "down" else ""
        return (f"{of[op]}{rank}d({x.C}, {o['K']}, {o['taps']}, stride={o['stride']}, "
                f"padding={o['padding']}, {more}bias={o['bias']}{key})")  # fmt: skip
    if op == "inverse":
        taps = options_of(program[o["at"]])["taps"]
        key = f", indice_key='down{o['at']}'" if keys else ""
        return f"{of[op]}{rank}d({x.C}, {o['K']}, {taps}, bias={o['bias']}{key})"
    if op == "pool":
        if keys and o["kind"] == "mean" and rank == 4:  # for which spconv has no name
            return f"spconv.pool.SparseAvgPool(4, {o['taps']}, {o['stride']}, {o['padding']})"
        return f"{of[o['kind']]}{rank}d({o['taps']}, {o['stride']}, {o['padding']})"
    if op == "linear":
        return f"nn.Linear({x.C}, {o['K']}, bias={o['bias']})"
    if op == "norm":
        return f"nn.BatchNorm1d({x.C}, affine={o['affine']})"
    inplace = "inplace=True" if o["form"] == "module inplace" else ""
    return f"nn.{_ACTIVATIONS[o['kind']][0]}({inplace})"


def _residual(o: dict[str, Any], x: Value, names: str, rank: int) -> str:
    """A residual block of ``lc.nn``; of spconv, one as detectors have it: the class ``Block``."""
    K, taps = o["K"], o["taps"]
    if names == "spconv":
        return f"Block({x.C}, {K}, {taps}, 'subm{x.level} {taps} {(1,) * rank}', {o['last']})"
    conv = f"lc.nn.SubmConv{rank}d"
    body = (f"lc.nn.Sequential({conv}({x.C}, {K}, {taps}, bias=False), nn.BatchNorm1d({K}), "
            f"nn.ReLU(), {conv}({K}, {K}, {taps}, bias=False), nn.BatchNorm1d({K}))")  # fmt: skip
    past = f"lc.nn.Sequential(nn.Linear({x.C}, {K}, bias=False), nn.BatchNorm1d({K}))"
    last = "nn.ReLU()" if o["last"] else "nn.Identity()"
    return f"lc.nn.Residual({body}, {past if x.C != K else None}, {last})"


def _block(rank: int) -> str:
    conv = f"spconv.SubMConv{rank}d"
    return f"""class Block(spconv.SparseModule):
    def __init__(self, C, K, taps, key, last):
        super().__init__()
        self.conv1 = {conv}(C, K, taps, bias=False, indice_key=key)
        self.norm1 = nn.BatchNorm1d(K)
        self.relu = nn.ReLU()
        self.conv2 = {conv}(K, K, taps, bias=False, indice_key=key)
        self.norm2 = nn.BatchNorm1d(K)
        self.past = nn.Linear(C, K, bias=False) if C != K else None
        self.norm3 = nn.BatchNorm1d(K) if C != K else None
        self.last = last

    def forward(self, x):
        past = x.features
        y = self.conv1(x)
        y = y.replace_feature(self.norm1(y.features))
        y = y.replace_feature(self.relu(y.features))
        y = self.conv2(y)
        y = y.replace_feature(self.norm2(y.features))
        if self.past is not None:
            past = self.norm3(self.past(past))
        y = y.replace_feature(y.features + past)
        if self.last:
            y = y.replace_feature(self.relu(y.features))
        return y
"""


def _lines(program: Program, number: int, names: str) -> list[str]:
    one = program[number]
    op, of, o, new = one[0], [f"v{v}" for v in one[1]], options_of(one), _NAMES[names]["new"]
    made, x = f"v{number + 1}", of[0]
    whole = names == "lc" and o.get("form") == "tensors"
    if op == "shared":
        call = f"self.m{o['at']}"
        is_norm = program[o["at"]][0] == "norm"
        return [f"{made} = {x}.{new}({call}({x}.features))" if is_norm else f"{made} = {call}({x})"]
    if op in ("linear", "norm") or (op == "act" and o["form"].startswith("module")):
        return [f"{made} = {x}.{new}(self.m{number}({x}.features))"]
    if has_module(one):
        return [f"{made} = self.m{number}({x})"]
    if op == "act":
        return [f"{made} = {x}.{new}({_ACTIVATIONS[o['kind']][1]}({x}.features))"]
    if op == "add":
        text = f"{x}.{new}({x}.features + {of[1]}.features)"
        return [f"{made} = {' + '.join(of) if whole else text}"]
    if op == "cat":
        text = f"{x}.{new}(torch.cat([{x}.features, {of[1]}.features], 1))"
        return [f"{made} = {f'lc.sparse.cat([{x}, {of[1]}])' if whole else text}"]
    name = {"lc": {"mean": "lc.nn.SparseGlobalAvgPool", "max": "lc.nn.SparseGlobalMaxPool"},
            "spconv": {"mean": "spconv.SparseGlobalAvgPool",
                       "max": "spconv.SparseGlobalMaxPool"}}[names][o["kind"]]  # fmt: skip
    return [f"{made} = {name}()({x})"]


def network_text(
    program: Program, laid: tuple[list[Value], list[Level]], names: str, rank: int, packed: bool
) -> str:
    """Python code: a class, and ``net``."""
    values, _ = laid
    first, lines = [], []
    for run in runs_of(program) if packed else [[n] for n in range(len(program))]:
        made = [module_text(program, n, values, names, rank) for n in run if has_module(program[n])]
        if len(run) > 1:
            parts = ",\n            ".join(made)
            sequence = _NAMES[names]["sequence"]
            first.append(f"self.s{run[0]} = {sequence}(\n            {parts},\n        )")
            lines.append(f"v{run[-1] + 1} = self.s{run[0]}(v{program[run[0]][1][0]})")
            continue
        first += [f"self.m{run[0]} = {made[0]}"] if made else []
        lines += _lines(program, run[0], names)
    body = "\n        ".join(["super().__init__()", *first])
    forward = "\n        ".join([*lines, f"return v{len(program)}"])
    net = (f"class Net(nn.Module):\n    def __init__(self):\n        {body}\n\n"
           f"    def forward(self, v0):\n        {forward}\n")  # fmt: skip
    blocks = (
        [_block(rank)] if names == "spconv" and any(s[0] == "residual" for s in program) else []
    )
    return "\n\n".join([HEADS[names], *blocks, net, "net = Net()\n"])
