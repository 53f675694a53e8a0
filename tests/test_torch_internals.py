"""Private names of torch: no other file has any, and each has a stand-in that is right without it.

A child process has a torch without all of them, and computes what this one does.
"""

from __future__ import annotations

import ast
import re
import sys
from functools import partial
from pathlib import Path
from types import BuiltinFunctionType

import pytest
import torch
from torch.autograd import forward_ad
from torch.overrides import has_torch_function

import layoutconv as lc
from layoutconv.base import torch_internals
from layoutconv.ops import guard
from layoutconv.ops.guard import is_plain
from layoutconv.sparse import submanifold_map

from .warm_process import run_python

ROOT = Path(__file__).resolve().parents[1]
HOME = "layoutconv/base/torch_internals.py"


def private_names(tree: ast.AST) -> set[str]:
    """Private modules of torch and what is in them, and private names of forward mode."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("torch"):
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names if alias.name.startswith("torch")}
        elif isinstance(node, ast.Attribute):
            found.add(ast.unparse(node))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            found.add(node.value)
    private = r"(torch|torch\.autograd\.forward_ad|forward_ad)\._[a-zA-Z]"
    return {name for name in found if re.match(private, name)}


def test_one_file_names_what_is_private_to_torch():
    files = [
        p for folder in ("layoutconv", "kernels") for p in sorted((ROOT / folder).rglob("*.py"))
    ]
    named = {
        str(path.relative_to(ROOT)): names
        for path in files
        if (names := private_names(ast.parse(path.read_text("utf-8"))))
    }
    assert named.keys() == {HOME}


def test_stand_ins_answer_as_torch_does():
    levels = torch_internals.Levels()
    assert levels._current_level == forward_ad._current_level == -1
    with forward_ad.dual_level():
        assert levels._current_level == forward_ad._current_level == 0
    assert not torch_internals.functions_may_look()
    with torch.device("cpu"):
        assert torch_internals.functions_may_look()
    with torch.device("cpu"):  # a mode that is known to miss nothing is none of torch's
        assert len(torch_internals.function_modes()) == len(torch_internals.unknown_mode()) == 1
    assert not torch_internals.autocast_is_on()
    with torch.autocast("cpu"):
        assert torch_internals.autocast_is_on()
    assert torch_internals.supposed(torch.ones(1))
    assert not torch_internals.never(torch.ones(1))
    assert torch_internals.itself(3) == 3
    part = torch.arange(9.0)[2:]  # from where it starts, not from where its memory does
    for in_shape in (torch_internals.in_shape, torch.Tensor.as_strided):
        assert in_shape(part, (3, 2), (1, 3)).tolist() == [[2, 5], [3, 6], [4, 7]]


@pytest.mark.parametrize("name", ["is_tracing", "is_any_autocast_enabled", "functions_that_look"])
def test_a_guard_sees_by_public_functions_what_it_sees_by_private_ones(name, monkeypatch):
    public = {
        "is_tracing": torch.jit.is_tracing,
        "is_any_autocast_enabled": torch_internals.autocast_is_on,
        "functions_that_look": torch_internals.functions_may_look,
    }
    monkeypatch.setattr(guard, name, public[name])
    x = torch.ones(2)
    assert is_plain(x)
    with torch.autocast("cpu"):
        assert not is_plain(x)
    with torch.device("cpu"):
        assert not is_plain(x)


@pytest.mark.parametrize("name", ["operators_that_look", "transform_on_top", "is_batched"])
def test_what_cannot_be_asked_for_is_supposed(name, monkeypatch):
    monkeypatch.setattr(guard, name, torch_internals.supposed)
    assert not is_plain(torch.ones(2))


WITHOUT = """
import importlib.util, sys
import torch
from pathlib import Path

real = importlib.import_module
def gone(name, *of):
    if name.startswith(("torch._C", "torch.private")):
        raise ImportError(name)
    return real(name, *of)

if sys.argv[1] == "without":
    importlib.import_module = gone
import layoutconv as lc
from layoutconv.base import torch_internals
importlib.import_module = real
if sys.argv[1] == "without":
    assert torch_internals.TENSOR_GUARDS is None
    assert torch_internals.operators_that_look is torch_internals.supposed
torch.manual_seed(0)
x, w = torch.randn(2, 3, 6, 6, requires_grad=True), torch.randn(4, 3, 3, 3, requires_grad=True)
cells = torch.tensor([[0, 1, 1], [0, 1, 2], [0, 3, 0]], dtype=torch.int32)
f, v = torch.randn(3, 2, requires_grad=True), torch.randn(5, 3, 3, 2, requires_grad=True)
cloud = lc.SparseTensor(f, cells, (4, 4), batch_size=1)
for _ in range(3):
    y = lc.conv2d(x, w, padding=1, activation="relu")
    z = lc.subm_conv(cloud, v).features
    found = y.sum().item(), z.sum().item()
    found += tuple(g.double().sum().item() for g in torch.autograd.grad(y.sum(), (x, w)))
    found += tuple(g.double().sum().item() for g in torch.autograd.grad(z.sum(), (f, v)))
each = torch.vmap(torch.func.grad(lambda a: lc.conv2d(a[None], w.detach()).sum()))(x.detach())
with torch.autocast("cpu", dtype=torch.bfloat16):
    low = lc.conv2d(x, w)
print(found, each.sum().item(), low.dtype)
"""


def test_results_are_the_same_without_private_names():
    printed = [run_python(["-c", WITHOUT, how], ROOT) for how in ("with", "without")]
    assert [p.stderr[-2000:] for p in printed if p.returncode] == []
    assert printed[0].stdout == printed[1].stdout != ""


@pytest.fixture
def untraceable(monkeypatch):
    """Hide every private function of torch from the compiler, in each file that holds it.

    So it is for torch 2.11 with the number of transforms, which later ones trace.
    """
    found = vars(torch_internals).values()
    functions = [
        f for f in found if isinstance(f, BuiltinFunctionType) and f is not has_torch_function
    ]
    assert torch_internals._transforms in functions
    modules = [m for name, m in sys.modules.items() if name.startswith("layoutconv")]
    for function in functions:
        hidden = torch._dynamo.disable(partial(_call, function))
        for module in modules:
            for name in [name for name, value in vars(module).items() if value is function]:
                monkeypatch.setattr(module, name, hidden)
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def _call(function, *given):
    return function(*given)


def dense_layer():
    torch.manual_seed(0)
    return lc.nn.Conv2d(3, 3, 3, padding=1), torch.randn(2, 3, 6, 5)


DENSE = {
    "layer": lambda layer: layer,
    "transposed": lambda layer: lambda x: lc.conv_transpose2d(x, layer.weight, stride=2),
    "epilogue": lambda layer: (
        lambda x: lc.conv2d(x, layer.weight, layer.bias, padding=1, activation="gelu", residual=x)
    ),
    "autocast": lambda layer: torch.autocast("cpu", dtype=torch.bfloat16)(layer.forward),
    "vmap": lambda layer: torch.vmap(lambda image: layer(image[None])[0]),
    "grad": lambda layer: torch.func.grad(lambda x: layer(x).square().sum()),
    "jvp": lambda layer: lambda x: torch.func.jvp(layer, (x,), (x,))[1],
    "vmap of grad": lambda layer: torch.vmap(
        torch.func.grad(lambda image: layer(image[None]).square().sum())
    ),
    "in turns": lambda layer: (
        lambda x: layer(x) + torch.vmap(layer.forward)(x[:, None])[:, 0] + layer(x)
    ),
}


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("case", DENSE)
def test_the_compiler_traces_no_private_function_of_dense_calls(case, dynamic, untraceable):
    layer, x = dense_layer()
    call = DENSE[case](layer)
    compiled = torch.compile(call, backend="eager", fullgraph=True, dynamic=dynamic)
    torch.testing.assert_close(compiled(x), call(x))


def test_the_compiler_traces_no_private_function_of_sparse_calls(untraceable):
    cells = torch.tensor([[0, 1, 1], [0, 1, 2], [0, 3, 0]], dtype=torch.int32)
    features, w = torch.randn(3, 2), torch.randn(5, 3, 3, 2)
    own = submanifold_map(lc.SparseTensor(features, cells, (4, 4), batch_size=1).coordinates, 3)

    def call(features, w):
        x = lc.SparseTensor(features, own.inputs)
        return lc.subm_conv(x, w, kernel_map=own, activation="relu").features

    want = call(features, w)
    compiled = torch.compile(call, backend="eager", fullgraph=True)
    torch.testing.assert_close(compiled(features, w), want)


@pytest.mark.parametrize("first", ["alone", "under a transform"])
def test_a_compiled_layer_is_compiled_again_under_a_transform(first):
    torch._dynamo.reset()
    layer, x = dense_layer()
    compiled = torch.compile(lambda image: layer(image), backend="eager")
    rounds = [
        lambda f: f(x),
        lambda f: torch.vmap(f)(x[:, None]),
        lambda f: torch.func.grad(lambda image: f(image).square().sum())(x),
    ]
    for call in 2 * (rounds if first == "alone" else rounds[::-1]):
        torch.testing.assert_close(call(compiled), call(layer))


def test_no_named_tuple_is_sliced() -> None:
    """Torch 2.6, the oldest, compiles no slice of a named tuple; these tests have another torch.

    For one slice it compiled and exported no network of this package.
    """
    found = [
        f"{path.name}: {ast.unparse(node)}"
        for path in sorted((ROOT / "layoutconv" / "nn").glob("*.py"))
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, ast.Subscript)
        and isinstance(node.slice, ast.Slice)
        and ast.unparse(node.value) in ("asked", "ending", "over")
    ]
    assert found == []
