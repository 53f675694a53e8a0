"""Record the forward pass of a module in training, with all modules that it calls as leaves.

``torch.fx`` runs the Python of a pass once, so what it does is only known if that does not depend
on what is not recorded. A pass is recorded twice, with gradients and without, under autocast and
not, and refused where the two differ, where modes change on the way, where random numbers are drawn
or attributes are set.
"""

from __future__ import annotations

import operator
import random
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from copy import copy
from inspect import Parameter, signature
from typing import Any

import torch
import torch.fx
from torch.fx import Graph, Node

from ..base.torch_internals import saved_tensors_hooks_on_top
from .forward_code import UnknownPassError

_DEVICES = "cpu", "cuda"
_HOLDERS = list, dict, set
_IN_PLACE = (
    "iadd", "isub", "imul", "itruediv", "ifloordiv", "imod", "ipow", "imatmul", "iand", "ior",
    "ixor", "ilshift", "irshift",
)  # fmt: skip


def recorded(module: Any) -> Graph:
    """The graph of the forward pass of a module in training.

    Raises :class:`UnknownPassError` where nobody can say what it is.

    >>> class Twice(torch.nn.Module):
    ...     def forward(self, x):
    ...         x += x
    ...         return x
    >>> [node.target for node in recorded(Twice()).nodes]
    ['x', <built-in function iadd>, 'output']
    """
    graph, other = (_recorded(module, other) for other in (False, True))
    if graph.python_code("self").src != other.python_code("self").src:
        raise UnknownPassError("it depends on autocast, or on whether gradients are wanted")
    return graph


class _Proxy(torch.fx.Proxy):
    """A value that passes for a tensor, and records what is done to it in place as such."""

    @property  # type: ignore[misc]
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
            raise UnknownPassError("it changes autograd or autocast on the way")
        return super().create_node(*args, **named)

    def create_arg(self, a: Any) -> Any:
        if type(a) is _Proxy:
            return a.node
        if type(a) is torch.Tensor and all(a is not b for b in self.root.buffers()):
            raise UnknownPassError("it makes a tensor, or keeps one that is no buffer")
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
        raise UnknownPassError("it takes optional arguments")
    own = {
        name: copy(value) if type(value) in _HOLDERS else value
        for name, value in module.__dict__.items()
    }
    own["training"] = True
    kind: Any = type(module)
    copied = kind.__new__(kind)
    copied.__dict__.update(own)
    before, randomness = _contents(copied), _randomness()
    try:
        with torch.set_grad_enabled(not other), _autocast(other):
            graph = _Recorder().trace(copied)
        for node in graph.nodes:  # annotations would be names in its code
            node.type = None
    except UnknownPassError:
        raise
    except Exception as error:  # whatever somebody else's code raises
        text = (str(error).strip().splitlines() or [""])[0]
        raise UnknownPassError(
            f"torch.fx cannot record it: {type(error).__name__}: {text}"
        ) from error
    finally:
        drawn = _randomness() != randomness
        _set_randomness(randomness)
    if drawn:
        raise UnknownPassError("it draws random numbers in Python")
    if _contents(copied) != before:
        raise UnknownPassError("it sets attributes")
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
