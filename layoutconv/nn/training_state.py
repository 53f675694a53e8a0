"""The state that training changes: buffers, random numbers, gradients, and modes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from ..base.torch_internals import add_to_each, copy_to_each


class Moment:
    """A snapshot of a network's buffers and of the random generators.

    >>> norm = torch.nn.BatchNorm1d(1)
    >>> before = Moment(norm, torch.device("cpu"))
    >>> y = norm(torch.ones(2, 1))
    >>> int(norm.num_batches_tracked), before.restore(), int(norm.num_batches_tracked)
    (1, None, 0)
    """

    def __init__(self, net: torch.nn.Module, device: torch.device) -> None:
        self.buffers = list(net.buffers())
        self.values = [buffer.clone() for buffer in self.buffers]
        self._device = device if device.type == "cuda" else None
        self._random = self._numbers()

    def _numbers(self) -> list[Tensor]:
        found = [torch.get_rng_state()]
        if self._device is not None:
            found.append(torch.cuda.get_rng_state(self._device))
        return found

    def restore(self) -> None:
        """Restore the snapshot."""
        with torch.no_grad():
            copy_all(self.buffers, self.values)
        torch.set_rng_state(self._random[0])
        if self._device is not None:
            torch.cuda.set_rng_state(self._random[1], self._device)

    def is_random(self) -> bool:
        """Return whether random numbers were drawn since."""
        return not all(map(torch.equal, self._random, self._numbers()))


BEYOND = "its loss has gradients for tensors that are no parameters of the network"
REENTRANT = "it checkpoints with use_reentrant=True, which `backward` alone differentiates"


def why_by_backward(tensor: Tensor, parameters: Sequence[Tensor]) -> str:
    """Return why ``backward`` of a tensor does more than ``torch.autograd.grad``, which gives the
    gradients of the parameters; "" if it does not.

    >>> x, scale = (torch.nn.Parameter(torch.ones(())) for _ in range(2))
    >>> why_by_backward(x * scale, [x, scale])
    ''
    >>> why_by_backward(x * scale, [x])
    'its loss has gradients for tensors that are no parameters of the network'
    """
    known = set(map(id, parameters))
    seen, nodes = set(), [torch.autograd.graph.get_gradient_edge(tensor).node]
    while nodes:
        node: Any = nodes.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        kind = type(node).__name__
        if kind == "AccumulateGrad" and id(node.variable) not in known:
            return BEYOND
        if kind == "CheckpointFunctionBackward":
            return REENTRANT
        nodes += [before for before, _ in node.next_functions]
    return ""


class Modes:
    """A snapshot of a network's modes, and of which parameters want gradients.

    >>> net = torch.nn.Linear(2, 2)
    >>> modes = Modes(net)
    >>> net = net.eval().requires_grad_(False)
    >>> modes.restore()
    >>> net.training, net.weight.requires_grad
    (True, True)
    """

    def __init__(self, net: torch.nn.Module) -> None:
        self._modes = [(module, module.training) for module in net.modules()]
        self._wants = [(p, p.requires_grad) for p in net.parameters() if p.is_leaf]

    def restore(self) -> None:
        """Restore the snapshot, for the modules and parameters in it."""
        for module, mode in self._modes:
            module.training = mode
        for parameter, wants in self._wants:
            if parameter.requires_grad != wants:
                parameter.requires_grad_(wants)


class Gradients:
    """Memory of the gradients of parameters, the same from step to step, whatever computed them.

    >>> weight = torch.nn.Parameter(torch.ones(2))
    >>> gradients = Gradients()
    >>> for _ in range(2):
    ...     gradients.add([weight], [torch.ones(2)])
    >>> memory, weight.grad = weight.grad, None
    >>> gradients.add([weight], [torch.ones(2)])
    >>> weight.grad, weight.grad is memory
    (tensor([1., 1.]), True)
    """

    def __init__(self) -> None:
        self._memory: dict[int, tuple[Tensor, Tensor]] = {}

    def add(self, parameters: Sequence[Tensor], found: Sequence[Tensor]) -> None:
        """Do what ``backward`` does: add to ``.grad``, or set it."""
        self.addition(parameters, found)()

    def addition(self, parameters: Sequence[Tensor], found: Sequence[Tensor]) -> Callable[[], None]:
        """Return a function that adds ``found``: a few launches, and no look-ups."""
        empty: list[tuple[Tensor, Tensor]] = []
        fresh: list[Tensor] = []
        there: tuple[list[Tensor], list[Tensor]] = [], []
        for parameter, gradient in zip(parameters, found, strict=True):
            if parameter.grad is not None:
                there[0].append(parameter.grad)
                there[1].append(gradient)
            else:
                empty.append((parameter, self._memory_of(parameter)))
                fresh.append(gradient)
        copies = _by_dtype([memory for _, memory in empty], fresh)

        def add() -> None:
            for parameter, memory in empty:
                parameter.grad = memory
            with torch.no_grad():
                for to, of in copies:
                    copy_to_each(to, of)
                if there[0]:
                    add_to_each(*there)

        return add

    def _memory_of(self, parameter: Tensor) -> Tensor:
        entry = self._memory.get(id(parameter))
        if entry is None or entry[0] is not parameter or not _alike(entry[1], parameter):
            with torch.inference_mode(False):
                entry = parameter, torch.empty_like(parameter, requires_grad=False)
            self._memory[id(parameter)] = entry
        return entry[1]

    def keep_only(self, parameters: Sequence[Tensor]) -> None:
        """Drop the memory of parameters that a network no longer has."""
        own = set(map(id, parameters))
        self._memory = {key: kept for key, kept in self._memory.items() if key in own}


def copy_all(tensors: list[Tensor], values: list[Tensor]) -> None:
    """Copy values into tensors: a launch or two for all of a dtype, like torch.

    >>> memory = [torch.zeros(1), torch.zeros((), dtype=torch.int64)]
    >>> copy_all(memory, [torch.ones(1), torch.tensor(3)])
    >>> memory
    [tensor([1.]), tensor(3)]
    """
    for to, of in _by_dtype(tensors, values):
        copy_to_each(to, of)


def _by_dtype(
    tensors: list[Tensor], values: list[Tensor]
) -> list[tuple[list[Tensor], list[Tensor]]]:
    alike: dict[Any, tuple[list[Tensor], list[Tensor]]] = {}
    for tensor, value in zip(tensors, values, strict=True):
        to, of = alike.setdefault((tensor.dtype, value.dtype), ([], []))
        to.append(tensor)
        of.append(value)
    return list(alike.values())


def _alike(memory: Any, parameter: Tensor) -> bool:
    """Return whether memory fits a gradient, after ``.to`` and ``.data =`` of a parameter."""
    return (memory.shape, memory.dtype, memory.device) == (
        parameter.shape, parameter.dtype, parameter.device,
    )  # fmt: skip
