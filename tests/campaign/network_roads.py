"""Roads that networks take before they run, and their calls, in training or evaluation."""

from __future__ import annotations

import threading
from contextlib import nullcontext
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.modules.batchnorm import _BatchNorm

import layoutconv as lc

from .networks import Network
from .oracle import WrongResultError
from .rounding import Record

_FORMATS = {2: torch.channels_last, 3: torch.channels_last_3d}


@dataclass(frozen=True)
class Data:
    """Images that go in, and the gradients of what comes out: float64, of each call."""

    inputs: tuple[Tensor, ...]
    grads: tuple[Tensor, ...]

    def to(self, dtype: torch.dtype, device: torch.device) -> Data:
        moved = [tuple(t.to(device, dtype) for t in some) for some in (self.inputs, self.grads)]
        return Data(*moved)


# -- roads -----------------------------------------------------------------------------------------


def travelled(net: Any, p: Network) -> Any:
    """The network after all roads."""
    for road in p.roads:
        names = list(net.state_dict())
        net = ROADS[road](net)
        if road != "fold" and list(net.state_dict()) != names:
            raise WrongResultError(f"{road}: names of parameters are not those of before")
    return net


def swapped(net: Any) -> Any:
    """Another activation in the place of the first, as an attribute of the module that calls it."""
    for module in net.modules():
        for name, child in module.named_children():
            if isinstance(child, torch.nn.ReLU | torch.nn.SiLU):
                setattr(module, name, torch.nn.ELU())
                return net
    return net


def _of_state(net: Any) -> Any:
    """A copy with other numbers, which loads those of the network."""
    other = deepcopy(net)
    with torch.no_grad():
        for tensor in (*other.parameters(), *other.buffers()):
            tensor.fill_(1)
    other.load_state_dict(net.state_dict())
    return other


def _channels_last(net: Any) -> Any:
    ranks = {p.dim() - 2 for p in net.parameters()} & set(_FORMATS)
    return net.to(memory_format=_FORMATS[ranks.pop()]) if len(ranks) == 1 else net


ROADS: dict[str, Any] = {
    "convert": lc.nn.convert, "fuse": lc.nn.fuse_batch_norms, "fold": lc.nn.fold_batch_norms,
    "revert": lc.nn.revert, "copy": deepcopy, "state": _of_state, "swap": swapped,
    "channels_last": _channels_last,
}  # fmt: skip


def set_up(net: Any, p: Network) -> Any:
    """Modes, hooks, and which parameters want gradients, the same of every copy of a network."""
    net.train(p.training)
    leaves = [m for m in net.modules() if not list(m.children())]
    if p.hooked >= 0:
        leaves[p.hooked % len(leaves)].register_forward_hook(_hook)
    norms = [m for m in net.modules() if isinstance(m, _BatchNorm)]
    for number, norm in enumerate(norms):
        if (number * 0.618) % 1 < p.frozen and norm.track_running_stats:
            norm.eval()
    for number, parameter in enumerate(net.parameters()):
        parameter.requires_grad_((number * 0.618) % 1 >= p.fixed)
    return net


def _hook(module: Any, inputs: Any, output: Tensor) -> Tensor:
    return output * 1.5


# -- calls -----------------------------------------------------------------------------------------


def play(net: Any, p: Network, data: Data, *, graph: bool) -> Record:
    """All calls; outputs, gradients and, after training, the state, by name."""
    if p.training:
        return _trained(net, p, data, graph)
    return _evaluated(net, p, data, graph)


def _loss(y: Tensor, grad: Tensor) -> Tensor:
    y = y.contiguous()  # whose sums are then in one order
    return (y.float() * grad.float()).sum() if y.dtype != torch.float64 else (y * grad).sum()


def lowered(p: Any, x: Tensor) -> Any:
    """Autocast, where a problem has it; not of the reference."""
    word = p.type.split()
    if len(word) == 1 or x.dtype == torch.float64:
        return nullcontext()
    return torch.autocast(x.device.type, getattr(torch, word[0]))


def in_type(values: Tensor, like: Tensor) -> Tensor:
    """Numbers in the type and on the device of others."""
    return values.to(like.device, like.dtype)


def _image(x: Tensor, p: Network) -> Tensor:
    """A copy with the order of memory of a problem."""
    if p.memory == "sliced":
        wide = torch.zeros(*x.shape[:-1], x.shape[-1] + 3, dtype=x.dtype, device=x.device)
        wide[..., 1:-2] = x
        return wide[..., 1:-2]
    if p.memory == "last" and p.rank in _FORMATS:
        return x.clone(memory_format=_FORMATS[p.rank])
    return x.clone()


def _trained(net: Any, p: Network, data: Data, graph: bool) -> Record:
    found: Record = {}
    wanted = [q for q in net.parameters() if q.requires_grad]
    optimizer = torch.optim.SGD(wanted, 0.01, momentum=0.9) if wanted else None
    step = lc.nn.graphed_step(net, _loss) if graph and _is_reached(net, p, data) else None
    for call in range(p.calls):
        x, grad = _image(data.inputs[call], p), data.grads[call]
        with lowered(p, data.inputs[0]):
            if step is not None:
                found[f"loss {call}"] = step(x, grad).clone()
            else:
                x.requires_grad_(not p.graph)
                y = net(x)
                loss = _loss(y, grad)
                found[f"loss {call}"] = loss.detach().clone()
                if not p.graph:
                    found[f"y {call}"] = y.detach().clone()
        if step is None and loss.requires_grad:
            loss.backward()
            if not p.graph:
                found[f"grad x {call}"] = x.grad
        if (call + 1) % p.every == 0 and optimizer is not None:
            for name, q in net.named_parameters():
                if q.grad is not None:
                    found[f"grad {name} {call}"] = q.grad.clone()
            optimizer.step()
            optimizer.zero_grad()
    for name, tensor in net.state_dict().items():
        found[f"state {name}"] = tensor.clone()
    with torch.no_grad(), lowered(p, data.inputs[0]):
        found["y after"] = net.eval()(_image(data.inputs[0], p))
    return found


def _is_reached(net: Any, p: Network, data: Data) -> bool:
    """Return whether some parameter that wants a gradient gets one."""
    y = deepcopy(net)(_image(data.inputs[0], p))
    return bool(y.requires_grad)


def _evaluated(net: Any, p: Network, data: Data, graph: bool) -> Record:
    found: Record = {}
    call_of = lc.nn.graphed(net) if graph and not p.gradients else net
    for call in range(p.calls):
        x = _image(data.inputs[call], p)
        with torch.set_grad_enabled(p.gradients), lowered(p, data.inputs[0]):
            y = call_of(x.requires_grad_(p.gradients))
            found[f"y {call}"] = y.detach().clone()
            if p.gradients:
                _loss(y, data.grads[call]).backward()
                found[f"grad x {call}"] = x.grad
    if p.gradients and "fold" not in p.roads:
        for name, q in net.named_parameters():
            if q.grad is not None:
                found[f"grad {name}"] = q.grad
    return found


def by_two_threads(net: Any, x: Tensor) -> list[Tensor]:
    """Return what two threads get that call a network at once."""
    found: list[Any] = [None, None]

    def work(number: int) -> None:
        with torch.no_grad():
            for _ in range(3):
                found[number] = net(x)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found
