"""Record the forward pass of a module, with all modules that it calls as leaves.

``torch.fx`` runs the Python of a pass once, so the graph is valid only if nothing unrecorded
changes the pass. A pass is recorded twice, with gradients, then without and under autocast. It is
refused if the two graphs differ, if it changes modes, draws random numbers or sets attributes.
"""

from __future__ import annotations

import operator
import random
import sys
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from copy import copy
from inspect import Parameter, signature
from opcode import opmap
from threading import RLock
from typing import Any

import torch
import torch.fx
from torch.fx import Graph, Node
from torch.fx.proxy import TraceError
from torch.overrides import TorchFunctionMode

from ..base.torch_internals import FUNCTORCH, saved_tensors_hooks_on_top
from .forward_code import UnknownPass

_DEVICES = "cpu", "cuda"
_WATCHING = RLock()
_SETS = "it sets attributes"
_HOLDERS = list, dict, set, deque  # and their subclasses, such as Counter
_IN_PLACE = (
    "iadd", "isub", "imul", "itruediv", "ifloordiv", "imod", "ipow", "imatmul", "iand", "ior",
    "ixor", "ilshift", "irshift",
)  # fmt: skip


def recorded(module: Any, *, training: bool = True, rewrites: bool = True) -> Graph:
    """Return the graph of the forward pass of a module in training, or in evaluation.

    Raises :class:`UnknownPass` if the pass cannot be analysed. If the caller ``rewrites`` the pass,
    it may not read attributes of a module's parts either: later changes would go unnoticed.

    >>> class Twice(torch.nn.Module):
    ...     def forward(self, x):
    ...         x += x
    ...         return x
    >>> [node.target for node in recorded(Twice()).nodes]
    ['x', <built-in function iadd>, 'output']
    """
    with attributes_read(module) as read:
        graph, other = (_recorded(module, training, other) for other in (False, True))
    if rewrites and read:
        raise UnknownPass(f"it reads `{read[0]}` of one of its parts, which may be set later")
    if graph.python_code("self").src != other.python_code("self").src:
        raise UnknownPass("it depends on autocast, or on whether gradients are wanted")
    return graph


class Proxy(torch.fx.Proxy):
    """A proxy that passes for a tensor where Python code asks, and records operations in place.

    C++ asks, too, and would go on to read the memory of a tensor: to it this is no tensor.
    """

    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        frame = sys._getframe(1)
        if _applies(frame):
            raise UnknownPass("torch.fx cannot record a function that reads numbers")
        return torch.Tensor if _asks(frame) else Proxy


def _asks(frame: Any) -> bool:
    """Return whether code may itself ask for the class of a value: it names ``isinstance``, by this
    or another name, or ``__class__``, or matches a pattern.
    """
    code, known = frame.f_code, frame.f_globals
    names = {*code.co_names, *code.co_freevars}
    if not _ASKING.isdisjoint(names) or any(known.get(name) is isinstance for name in names):
        return True
    return opmap["MATCH_CLASS"] in code.co_code[::2]


_ASKING = frozenset({"isinstance", "__class__"})


def _applies(frame: Any) -> bool:
    """Return whether code may call a function of ``_READERS``: it has the name, or a global name
    of ``apply``, or is of torch's transforms of functions, which read values in C++.
    """
    names, known = frame.f_code.co_names, frame.f_globals
    if not _READERS.isdisjoint(names) or any(
        getattr(known.get(name), "__name__", "") == "apply" for name in names
    ):
        return True
    return str(known.get("__name__")).startswith((FUNCTORCH, "torch.jit."))


def _in_place(name: str) -> Any:
    target = getattr(operator, name)

    def method(self: Any, other: Any) -> Any:
        return self.tracer.create_proxy("call_function", target, (self, other), {})

    return method


for _name in _IN_PLACE:
    setattr(Proxy, f"__{_name}__", _in_place(_name))


# Names of functions that read the memory of a size or a value before a mode sees the call.
_READERS = frozenset({
    "apply", "arange", "empty", "eye", "full", "linspace", "logspace", "new_empty", "new_full",
    "new_ones", "new_zeros", "ones", "rand", "randint", "randn", "randperm", "zeros",
})  # fmt: skip
# Functions in C++ that read the memory of whatever passes for a tensor, and would crash.
_READING: frozenset[Any] = frozenset({
    torch.as_tensor, torch.asarray, torch.tensor, torch.Tensor.new_tensor, torch.sparse_coo_tensor,
    torch.sparse_compressed_tensor, torch.sparse_csr_tensor, torch.sparse_csc_tensor,
    torch.sparse_bsr_tensor, torch.sparse_bsc_tensor,
    torch.Tensor.data.__set__,  # type: ignore[attr-defined]
})  # fmt: skip


class _Refusing(TorchFunctionMode):
    """A mode in which functions of ``_READING`` refuse proxies."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        named = kwargs or {}
        if func in _READING and any(type(value) is Proxy for value in (*args, *named.values())):
            raise UnknownPass(f"torch.fx cannot record torch's {func.__name__}")
        return func(*args, **named)


class Tracer(torch.fx.Tracer):
    """A tracer whose values pass for tensors."""

    proxy_buffer_attributes = True  # otherwise the pass would bake in values of buffers

    def trace(self, root: Any, concrete_args: dict[str, Any] | None = None) -> Graph:
        with _Refusing():
            return super().trace(root, concrete_args)

    def proxy(self, node: Node) -> Any:
        return Proxy(node, self)

    def create_arg(self, a: Any) -> Any:
        return a.node if type(a) is Proxy else super().create_arg(a)


class _Recorder(Tracer):
    """A tracer whose leaves are all modules; it refuses what the graph would lose."""

    def __init__(self) -> None:
        super().__init__()
        self.modes = _modes()

    def is_leaf_module(self, m: Any, module_qualified_name: str) -> bool:
        return True

    def to_bool(self, obj: Any) -> bool:
        try:
            return super().to_bool(obj)
        except TraceError as error:  # the pass might catch it, and take another branch
            raise UnknownPass(f"torch.fx cannot record it: TraceError: {error}") from error

    def create_node(self, *args: Any, **named: Any) -> Node:
        if _modes() != self.modes:
            raise UnknownPass("it changes autograd or autocast on the way")
        return super().create_node(*args, **named)

    def create_arg(self, a: Any) -> Any:
        if type(a) is torch.Tensor and all(a is not b for b in self.root.buffers()):
            raise UnknownPass("it makes a tensor, or keeps one that is not a buffer")
        return super().create_arg(a)


def _modes() -> tuple[Any, ...]:
    """Return the modes that a ``torch.fx`` graph does not record."""
    return (
        torch.is_grad_enabled(),
        torch.is_inference_mode_enabled(),
        saved_tensors_hooks_on_top(False),
        *((torch.is_autocast_enabled(d), torch.get_autocast_dtype(d)) for d in _DEVICES),
    )


def _recorded(module: Any, training: bool, other: bool) -> Graph:
    """Record a forward pass; ``other`` is without gradients and under autocast.

    A copy runs, which shares the module's children and parameters.
    """
    with undone(module) as done:
        try:
            _ask_for_arguments(type(module))
            copied = copy_of(module, training=training)
            before = contents(copied.__dict__)
            with torch.set_grad_enabled(not other), autocast_everywhere(other):
                graph = _Recorder().trace(copied)
        except Exception as error:  # whatever somebody else's code raises
            text = (str(error).strip().splitlines() or [""])[0]
            raise UnknownPass(
                f"torch.fx cannot record it: {type(error).__name__}: {text}"
            ) from error
    if not done and contents(copied.__dict__) != before:
        done.append(_SETS)
    if done:
        raise UnknownPass(done[0])
    for node in graph.nodes:  # annotations would be names in its code
        node.type = None
    return graph


@contextmanager
def undone(module: torch.nn.Module) -> Iterator[list[str]]:
    """Undo changes of modules and of random generators in this context; yields a list, which names
    the changes at the end.

    >>> module = torch.nn.ReLU()
    >>> with undone(module) as done:
    ...     module.inplace = None
    >>> module.inplace, done
    (False, ['it sets attributes'])
    """
    randomness, children = _randomness(), {m: dict(m.__dict__) for m in module.modules()}
    done: list[str] = []
    try:
        yield done
    finally:
        if _randomness() != randomness:
            done.append("it draws random numbers in Python")
        _set_randomness(randomness)
        for child, was in children.items():
            if _differ(child.__dict__, was):
                child.__dict__.clear()
                child.__dict__.update(was)
                done.append(_SETS)


@contextmanager
def attributes_read(module: torch.nn.Module) -> Iterator[list[str]]:
    """Yield a list of the plain attributes that this context reads from a module's parts.

    >>> net = torch.nn.Sequential(torch.nn.Dropout(0.5))
    >>> with attributes_read(net) as read:
    ...     net.training, net[0].p
    (True, 0.5)
    >>> read
    ['p']
    """
    parts = {id(part) for part in module.modules() if part is not module}
    read: list[str] = []
    kind: Any = torch.nn.Module

    def watching(self: Any, name: str) -> Any:
        if id(self) in parts and name[0] != "_" and name in get(self, "__dict__"):
            read.append(name)
        return get(self, name)

    with _WATCHING:  # two threads at once would leave one patch behind
        before, get = kind.__dict__.get("__getattribute__"), kind.__getattribute__
        kind.__getattribute__ = watching
        try:
            yield read
        finally:
            if before is None:
                del kind.__getattribute__
            else:
                kind.__getattribute__ = before


def _ask_for_arguments(kind: Any) -> None:
    """Raises :class:`UnknownPass` if a forward pass takes a variable number of arguments."""
    for parameter in signature(kind.forward).parameters.values():
        always = parameter.default is Parameter.empty
        if parameter.kind is not Parameter.POSITIONAL_OR_KEYWORD or not always:
            raise UnknownPass("it takes optional arguments")


def copy_of(module: Any, *, training: bool = True) -> Any:
    """Copy a module, in training or not: its children and parameters are shared, the containers
    that hold them are copied.

    >>> module = torch.nn.Sequential(torch.nn.ReLU()).eval()
    >>> copied = copy_of(module)
    >>> copied[0] is module[0], copied._modules is module._modules, copied.training
    (True, False, True)
    """
    kind: Any = type(module)
    copied = kind.__new__(kind)
    for name, value in module.__dict__.items():
        copied.__dict__[name] = copy(value) if isinstance(value, _HOLDERS) else value
    copied.__dict__["training"] = training
    return copied


def _differ(one: dict[str, Any], other: dict[str, Any]) -> bool:
    """Return whether attributes are not the same objects."""
    return one.keys() != other.keys() or any(one[name] is not other[name] for name in one)


@contextmanager
def autocast_everywhere(on: bool) -> Iterator[None]:
    """Switch autocast on or off, on all devices, in this context.

    >>> with autocast_everywhere(True):
    ...     torch.is_autocast_enabled("cpu")
    True
    """
    before = [torch.is_autocast_enabled(device) for device in _DEVICES]
    for device in _DEVICES:
        torch.set_autocast_enabled(device, on)
    try:
        yield
    finally:
        for device, was in zip(_DEVICES, before, strict=True):
            torch.set_autocast_enabled(device, was)


def contents(attributes: dict[str, Any]) -> list[Any]:
    """Return the ids of a module's attributes, and of the contents of containers.

    >>> attributes = {"seen": [1]}
    >>> before = contents(attributes)
    >>> attributes["seen"].append(2)
    >>> contents(attributes) == before
    False
    """
    every = []
    for name, value in attributes.items():
        inner: Any = ()
        if isinstance(value, _HOLDERS):
            inner = [*map(id, value)]
            inner += map(id, value.values()) if isinstance(value, dict) else ()
        every.append((name, id(value), inner))
    return every


def _randomness() -> tuple[Any, ...]:
    """Return the states of the random generators of Python, torch and NumPy."""
    state = torch.get_rng_state().numpy().tobytes()
    numpy = sys.modules.get("numpy")
    if numpy is None:
        return random.getstate(), state, None
    name, key, *rest = numpy.random.get_state()
    return random.getstate(), state, (name, key.tobytes(), *rest)


def _set_randomness(states: tuple[Any, ...]) -> None:
    random.setstate(states[0])
    torch.set_rng_state(torch.frombuffer(bytearray(states[1]), dtype=torch.uint8))
    if states[2] is not None:
        numpy = sys.modules["numpy"]
        name, key, *rest = states[2]
        numpy.random.set_state((name, numpy.frombuffer(key, "uint32"), *rest))
