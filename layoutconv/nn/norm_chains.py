"""Find ``relu(norm(x) + shortcut)`` in the forward pass of a module, and write it as one call.

A pass is recorded by ``torch.fx``, with all modules that it calls as leaves. It runs Python once,
so what it does is only known if that does not depend on what is not recorded: it is recorded twice,
with gradients and without, under autocast and not, and is left where the two differ, where modes
change on the way, where random numbers are drawn or attributes are set.
"""

from __future__ import annotations

import operator
import random
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import copy
from importlib import import_module
from inspect import Parameter, signature
from types import ModuleType
from typing import Any, NamedTuple

import torch
import torch.fx
from torch.fx import Graph, Node
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.conv import _ConvNd

from ..base.caches import remembered
from ..base.torch_internals import saved_tensors_hooks_on_top
from .fused_batch_norm import NORMS, ahead, is_container, normed
from .trained_norm import are_bare

_DEVICES = "cpu", "cuda"
_ADDS = {operator.add, torch.add}
_RELUS = {torch.relu, torch.relu_, torch.nn.functional.relu, torch.nn.functional.relu_}
_FRESH = _ConvNd, _BatchNorm, torch.nn.Linear  # results are memory of their own
_HOLDERS = list, dict, set
_IN_PLACE = (
    "iadd", "isub", "imul", "itruediv", "ifloordiv", "imod", "ipow", "imatmul", "iand", "ior",
    "ixor", "ilshift", "irshift",
)  # fmt: skip


class Unknown(Exception):
    """Why the forward pass of a module is left as it is."""


class Code(NamedTuple):
    """A forward pass: a function ``forward(self, ...)``, and the objects that it names.

    Attributes:
        names: of each its name there, its module and its name in that, "" for the module itself.
    """

    source: str
    names: tuple[tuple[str, str, str], ...]


@remembered(256)
def compiled(code: Code) -> Callable[..., Any]:
    """The function of a forward pass.

    >>> compiled(Code("def forward(self, x):\\n    return sqrt(x)", (("sqrt", "math", "sqrt"),)))(0, 4)
    2.0
    """
    names = {name: found(*place) for name, *place in code.names}
    exec(compile(code.source, "<forward pass with fused norms>", "exec"), names)
    function: Callable[..., Any] = names["forward"]
    return function


def found(module: str, name: str) -> Any:
    """The object of a name in a module.

    >>> found("math", ""), found("torch", "nn.ReLU")
    (<module 'math' (built-in)>, <class 'torch.nn.modules.activation.ReLU'>)
    """
    where = import_module(module)
    return operator.attrgetter(name)(where) if name else where


def tail(module: Any) -> Any:
    """The last module of a container, and of that; another module itself.

    >>> tail(torch.nn.Sequential(torch.nn.ReLU(), torch.nn.Sequential(torch.nn.Tanh())))
    Tanh()
    """
    while is_container(module) and are_bare(module):
        module = list(module._modules.values())[-1]
    return module


def rewritten(module: Any) -> tuple[Code | None, list[str], dict[str, str]]:
    """The forward pass of a module in training with its norms fused, None if there are none; the
    names of these norms; and the others that it calls, each with the reason.

    Raises :class:`Unknown` where nobody can say what the pass does.
    """
    graphs = [_recorded(module, other) for other in (False, True)]
    graph = graphs[0]
    if graph.python_code("self").src != graphs[1].python_code("self").src:
        raise Unknown("its forward pass depends on autocast or on whether gradients are wanted")
    chains, left = [], {}
    for node in graph.nodes:
        if node.op == "call_module" and type(tail(module.get_submodule(node.target))) in NORMS:
            name = name_of(module, node.target)
            try:
                chain = _chain(module, node)
                if any(chain.relu is other.relu for _, other in chains):
                    raise Unknown("the ReLU is that of another norm, which is added")
                chains.append((name, chain))
            except Unknown as reason:
                left[name] = str(reason)
    for _, chain in chains:
        _fuse(module, chain)
    code = _code(graph) if chains else None
    return code, [name for name, _ in chains], left


def name_of(module: Any, target: str) -> str:
    """The name of the last module of a container in a module."""
    last = tail(module.get_submodule(target))
    inner = next(n for n, m in module.get_submodule(target).named_modules() if m is last)
    return f"{target}.{inner}" if inner else target


# -- recording a pass -----------------------------------------------------------------------------


class _Proxy(torch.fx.Proxy):
    """A value that passes for a tensor, and records what is done to it in place as such."""

    @property
    def __class__(self) -> Any:
        return torch.Tensor


def _in_place(name: str) -> Any:
    target = getattr(operator, name)

    def method(self: Any, other: Any) -> Any:
        return self.tracer.create_proxy("call_function", target, (self, other), {})

    return method


for _name in _IN_PLACE:
    setattr(_Proxy, f"__{_name}__", _in_place(_name))


class _Recorder(torch.fx.Tracer):
    """A tracer whose leaves are all modules, and which refuses what it would lose."""

    def __init__(self) -> None:
        super().__init__()
        self.modes = _modes()

    def is_leaf_module(self, m: Any, module_qualified_name: str) -> bool:
        return True

    def proxy(self, node: Node) -> Any:
        return _Proxy(node, self)

    def create_node(self, *args: Any, **named: Any) -> Node:
        if _modes() != self.modes:
            raise Unknown("its forward pass changes autograd or autocast on the way")
        return super().create_node(*args, **named)

    def create_arg(self, a: Any) -> Any:
        if type(a) is _Proxy:
            return a.node
        if type(a) is torch.Tensor and all(a is not b for b in self.root.buffers()):
            raise Unknown("its forward pass makes a tensor, or keeps one that is no buffer")
        return super().create_arg(a)


def _modes() -> tuple[Any, ...]:
    """What a graph of ``torch.fx`` says nothing of."""
    return (
        torch.is_grad_enabled(),
        torch.is_inference_mode_enabled(),
        saved_tensors_hooks_on_top(False),
        *((torch.is_autocast_enabled(d), torch.get_autocast_dtype(d)) for d in _DEVICES),
    )


def _recorded(module: Any, other: bool) -> Graph:
    """The graph of a forward pass in training; of no gradient and under autocast, if ``other``."""
    parameters = signature(type(module).forward).parameters.values()
    if any(p.kind is not Parameter.POSITIONAL_OR_KEYWORD for p in parameters) or any(
        p.default is not Parameter.empty for p in parameters
    ):
        raise Unknown("its forward pass takes optional arguments")
    own = {
        name: copy(value) if type(value) in _HOLDERS else value
        for name, value in module.__dict__.items()
    }
    own["training"] = True
    copied = type(module).__new__(type(module))
    copied.__dict__.update(own)
    before, randomness = _contents(copied), _randomness()
    try:
        with torch.set_grad_enabled(not other), _autocast(other):
            graph = _Recorder().trace(copied)
    except Unknown:
        raise
    except Exception as error:  # whatever somebody else's code raises
        text = (str(error).strip().splitlines() or [""])[0]
        raise Unknown(f"torch.fx cannot trace it: {type(error).__name__}: {text}") from error
    finally:
        drawn = _randomness() != randomness
        _set_randomness(randomness)
    if drawn:
        raise Unknown("its forward pass draws random numbers in Python")
    if _contents(copied) != before:
        raise Unknown("its forward pass sets attributes")
    return graph


@contextmanager
def _autocast(on: bool) -> Iterator[None]:
    before = [torch.is_autocast_enabled(device) for device in _DEVICES]
    for device in _DEVICES:
        torch.set_autocast_enabled(device, on)
    try:
        yield
    finally:
        for device, was in zip(_DEVICES, before, strict=True):
            torch.set_autocast_enabled(device, was)


def _contents(module: Any) -> list[Any]:
    """Attributes of a module, and what is in those that hold something."""
    every = []
    for name, value in module.__dict__.items():
        inner: Any = ()
        if type(value) in _HOLDERS:
            inner = [*map(id, value)]
            inner += map(id, value.values()) if type(value) is dict else ()
        every.append((name, id(value), inner))
    return every


def _randomness() -> tuple[Any, ...]:
    """The states of generators of random numbers."""
    numpy = sys.modules.get("numpy")
    of_numpy = None if numpy is None else numpy.random.get_state(legacy=False)
    state = None if of_numpy is None else (of_numpy["state"]["key"].tobytes(), of_numpy)
    pair = (None, None) if state is None else (state[0], state[1]["state"]["pos"])
    return random.getstate(), torch.get_rng_state().numpy().tobytes(), pair


def _set_randomness(states: tuple[Any, ...]) -> None:
    random.setstate(states[0])
    torch.set_rng_state(torch.frombuffer(bytearray(states[1]), dtype=torch.uint8))


# -- chains ---------------------------------------------------------------------------------------


class _Chain(NamedTuple):
    norm: Node
    between: Node | None
    add: Node | None
    relu: Node

    def past(self) -> Any:
        """What is added, as the graph is now."""
        if self.add is None:
            return None
        first, second = self.add.args
        return second if first is (self.between or self.norm) else first


def _chain(module: Any, norm: Node) -> _Chain:
    """The nodes from a norm to the ReLU after it.

    Raises :class:`Unknown` where there is none, or what lies between would be computed otherwise.
    """
    own = tail(module.get_submodule(norm.target))
    if not are_bare(own):
        raise Unknown("it has hooks, or a forward pass of its own")
    if len(norm.args) != 1 or norm.kwargs:
        raise Unknown("it is called with more than an input")
    between, node = None, _only_user(norm)
    if node.op == "call_module" and type(module.get_submodule(node.target)) is torch.nn.Identity:
        between, node = node, _only_user(node)
    add = None
    if _is_sum(node):
        add, node = node, _only_user(node)
    if not _is_relu(module, node):
        raise Unknown("no ReLU follows it, nor a sum and a ReLU")
    chain = _Chain(norm, between, add, node)
    past = chain.past()
    if add is not None and not isinstance(past, Node):
        raise Unknown("what is added to it is no tensor")
    if _is_in_place(add) and past is add.args[0]:  # type: ignore[union-attr]
        raise Unknown("it is added to a tensor in place")
    _ask_whether_it_may_move(module, chain, own)
    return chain


def _only_user(node: Node) -> Node:
    """The node that takes the result of another, once."""
    users = list(node.users)
    if len(users) != 1 or users[0].all_input_nodes.count(node) != 1:
        raise Unknown("its result is used more than once")
    user = users[0]
    if sum(a is node for a in user.args) != 1 or len(user.args) > 2:
        raise Unknown("no ReLU follows it, nor a sum and a ReLU")
    return user


def _is_sum(node: Node) -> bool:
    if len(node.args) != 2 or node.kwargs:
        return False
    if node.op == "call_function":
        return node.target in _ADDS or node.target is operator.iadd
    return node.op == "call_method" and node.target in ("add", "add_")


def _is_in_place(add: Node | None) -> bool:
    return add is not None and (add.target is operator.iadd or add.target == "add_")


def _is_relu(module: Any, node: Node) -> bool:
    if node.op == "call_module":
        last = module.get_submodule(node.target)
        return type(last) is torch.nn.ReLU and len(node.args) == 1 and are_bare(last)
    if node.op == "call_function":
        return node.target in _RELUS
    return node.op == "call_method" and node.target in ("relu", "relu_")


def _ask_whether_it_may_move(module: Any, chain: _Chain, own: Any) -> None:
    """The norm and the sum move to where the ReLU is: nothing in between may change what they read,
    or call the norm.
    """
    roots, past = _roots(module, chain.norm.graph), chain.past()
    read = roots[chain.norm]
    nodes = list(chain.norm.graph.nodes)
    parts = {chain.norm, chain.between, chain.add}
    for node in nodes[nodes.index(chain.norm) + 1 : nodes.index(chain.relu)]:
        if node is chain.add:
            read = read | roots[past]
        if node in parts or node.op in ("get_attr", "placeholder"):
            continue
        if read & set().union(*(roots[given] for given in node.all_input_nodes)):
            raise Unknown("what it reads may be changed before the ReLU")
        if node.op == "call_module" and any(
            part is own for part in module.get_submodule(node.target).modules()
        ):
            raise Unknown("it is called again before the ReLU")


def _roots(module: Any, graph: Graph) -> dict[Node, set[Any]]:
    """The memory that the result of each node may be, or a norm reads: names of where it is made."""
    found: dict[Node, set[Any]] = {}
    for node in graph.nodes:
        given: set[Any] = set().union(*(found[one] for one in node.all_input_nodes))
        if node.op == "placeholder":
            found[node] = {"inputs"}
            continue
        if node.op != "call_module":
            found[node] = given | {node}
            continue
        own = module.get_submodule(node.target)
        last = tail(own)
        if type(last) in NORMS:
            # What it reads: of a container, what comes before the norm has made.
            before = own
            while before is not last:
                *parts, inner = before._modules.values()
                fresh = bool(parts) and isinstance(tail(parts[-1]), _FRESH)
                given, before = ({(node, "before")} if fresh else given), inner
            found[node] = given | {node}
        else:
            found[node] = {node} if isinstance(last, _FRESH) else given | {node}
    return found


# -- writing --------------------------------------------------------------------------------------


def _fuse(module: Any, chain: _Chain) -> None:
    """Call :func:`~layoutconv.nn.fused_batch_norm.normed` in place of a chain."""
    graph, (norm, between, add, relu) = chain.norm.graph, chain
    past, input = chain.past(), norm.args[0]
    with graph.inserting_before(norm):
        if tail(module.get_submodule(norm.target)) is module.get_submodule(norm.target):
            of_norm = graph.get_attr(norm.target)
        else:  # what comes before it stays where it is
            pair = graph.call_function(ahead, (graph.get_attr(norm.target), input))
            of_norm = graph.call_function(operator.getitem, (pair, 0))
            input = graph.call_function(operator.getitem, (pair, 1))
    with graph.inserting_before(relu):
        last = graph.get_attr(relu.target) if relu.op == "call_module" else None
        middle = None if between is None else graph.get_attr(between.target)
        given = of_norm, input, last, past, middle, _is_in_place(add)
        made = graph.call_function(normed, given)
    relu.replace_all_uses_with(made)
    for node in (relu, add, between, norm):
        if node is not None:
            graph.erase_node(node)


def _code(graph: Graph) -> Code:
    """The code of a graph, which can be pickled."""
    graph.lint()
    made = graph.python_code("self")
    names = []
    for name, value in made.globals.items():
        if isinstance(value, ModuleType):
            names.append((name, value.__name__, ""))
            continue
        place = getattr(value, "__module__", None), getattr(value, "__qualname__", None)
        try:
            same = found(*place) is value  # type: ignore[arg-type]
        except Exception:
            same = False
        if same:
            names.append((name, *place))  # type: ignore[arg-type]
        elif name in _words(made.src):
            raise Unknown(f"its forward pass calls `{name}`, which has no place to import it from")
    return Code(made.src, tuple(names))


def _words(source: str) -> set[str]:
    """The names in a source."""
    words = "".join(c if c.isalnum() or c == "_" else " " for c in source)
    return set(words.split())
