"""Subclasses whose forward pass pads the input itself, and puts kept frames before it.

A causal convolution over time is often a subclass of ``torch.nn.Conv3d`` whose ``forward(x,
cache=None)`` concatenates the cache and ``x``, pads the result with zeros, and calls
``super().forward``. Each step copies the input, while a convolution of this package pads as it
reads. To recognise such a method, it is traced symbolically; no names are known here. A method that
also writes to attributes runs as it is, and so does one whose attributes have changed since.
"""

from __future__ import annotations

import operator
from copy import copy, deepcopy
from inspect import Parameter, getattr_static, signature, unwrap
from types import new_class
from typing import Any, NamedTuple

import torch
from torch import Tensor, fx
from torch.nn.functional import pad

from .arguments import near_and_far
from .modules import weight_and_bias
from .recorded_pass import autocast_everywhere, undone

Pairs = tuple[tuple[int, int], ...]

OWN_PADDING = "_own_padding"  # the attribute of a converted module that says what it pads

# None of the allowed functions depends on a tensor's values.
_FUNCTIONS = {torch.cat, torch.concat, pad} | {
    getattr(operator, name) for name in ("getitem", "add", "sub", "mul", "neg")
}
_EXTENTS = (4, 3), (5, 4), (7, 6)  # trial extents of the first spatial mode and of the others
_BEYOND = 2  # trial frames of a cache beyond those that are read
_OF_OWN_PADDING = {"padding", "padding_mode", "dilation", "kernel_size"}
_NUMBERS = bool, int, float, str, type(None)
_HOLDERS = tuple, list, dict, set
_PLAIN = _NUMBERS + _HOLDERS  # compared by value, other attributes by identity


class OwnPadding(NamedTuple):
    """A forward pass that is a convolution of its input, padded with zeros.

    Attributes:
        parameters: the names of the input and, if there are any, of the frames before it.
        padding: (near, far) of every spatial mode, including the convolution's own. Given frames
            replace the last near zeros of the first mode.
    """

    parameters: tuple[str, ...]
    padding: Pairs

    def arguments(self, args: tuple[Any, ...], named: dict[str, Any]) -> list[Any] | None:
        """Return the input and the frames, batches as ``compute`` needs, None for frames that are
        missing; None for other calls.
        """
        given = dict(zip(self.parameters, args, strict=False)) | named
        if len(args) + len(named) != len(given) or not given.keys() <= {*self.parameters}:
            return None
        input, frames = [given.get(name) for name in (*self.parameters, "")][:2]
        rank = len(self.padding) + 2
        tensors = (input,) if frames is None else (input, frames)
        if not all(isinstance(t, torch.Tensor) and t.dim() == rank for t in tensors):
            return None
        return [input, frames]

    def compute(self, layer: Any, input: Tensor, frames: Tensor | None) -> Tensor:
        """Compute the result of a converted layer."""
        first, *sides = self.padding
        if frames is not None and first[0]:
            input, left = after_frames(frames.to(input.device), input, first[0])
            first = left, first[1]
        result: Tensor = layer._function(
            input, *weight_and_bias(layer), layer.stride, (first, *sides), layer.dilation,
            layer.groups, activation=layer.activation, slope=layer.slope,
        )  # fmt: skip
        return result


class RecognisedPadding(NamedTuple):
    """The padding of a converted layer, valid while the attributes that its pass ``read`` are."""

    found: OwnPadding
    read: dict[str, Any]

    def holds(self, layer: Any) -> bool:
        """Return whether the attributes that the forward pass read are unchanged."""
        for name, value in self.read.items():
            now = getattr(layer, name, self)
            if now is not value and not (type(now) in _PLAIN and now == value):
                return False
        return True

    def compute(self, layer: Any, args: tuple[Any, ...], named: dict[str, Any]) -> Tensor | None:
        """Compute the result of the layer; None if its own forward pass has to run."""
        given = self.found.arguments(args, named) if self.holds(layer) else None
        return None if given is None else self.found.compute(layer, *given)


def after_frames(frames: Tensor, input: Tensor, reach: int) -> tuple[Tensor, int]:
    """Concatenate the last ``reach`` of ``frames`` and ``input``; also return how many zeros are
    missing.

    Both are (N, C, D, H, W). The result is in ``channels_last`` memory, written once.

    >>> joined, missing = after_frames(torch.ones(1, 4, 1, 3, 3), torch.zeros(1, 4, 2, 3, 3), 2)
    >>> joined.shape, missing, joined.movedim(1, -1).is_contiguous()
    (torch.Size([1, 4, 3, 3, 3]), 1, True)
    """
    kept = frames[:, :, max(0, frames.shape[2] - reach) :]
    joined = torch.cat([kept.movedim(1, -1), input.movedim(1, -1)], 1)
    return joined.movedim(-1, 1), reach - kept.shape[2]


def overriding(kind: type, base: type) -> str | None:
    """Return the method by which a subclass of ``base`` replaces its forward pass, or None.

    A method that calls ``super().forward`` or ``super()._conv_forward`` replaces nothing: in a
    class whose other base is a convolution of this package, that is this package's.

    >>> class Halved(torch.nn.Conv2d):
    ...     def forward(self, input):
    ...         return super().forward(input) / 2
    >>> class Apart(torch.nn.Conv2d):
    ...     def forward(self, input):
    ...         return torch.nn.functional.conv2d(input, self.weight.abs())
    >>> overriding(Halved, torch.nn.Conv2d), overriding(Apart, torch.nn.Conv2d)
    (None, 'forward')
    """
    for owner in kind.__mro__[: kind.__mro__.index(base)]:
        for name in ("forward", "_conv_forward"):
            if name in owner.__dict__ and not _calls_super(owner.__dict__[name]):
                return name
    return None


def _calls_super(method: Any) -> bool:
    code = getattr(unwrap(method) if callable(method) else method, "__code__", None)
    if code is None or "__class__" not in code.co_freevars:
        return False
    return bool({"forward", "_conv_forward"} & {*code.co_names})


def own_padding(layer: Any, base: type) -> OwnPadding | None:
    """Return the padding that :func:`recognised_padding` finds, or None."""
    found = recognised_padding(layer, base)
    return None if found is None else found.found


def recognised_padding(layer: Any, base: type) -> RecognisedPadding | None:
    """Return the padding of an overridden forward pass that only pads; None for another pass.

    ``base`` is the torch class whose forward pass it calls. The layer neither runs nor changes.

    >>> class Causal(torch.nn.Conv1d):
    ...     def forward(self, x, before=None):
    ...         missing = 2
    ...         if before is not None:
    ...             x = torch.cat([before, x], dim=2)
    ...             missing = missing - before.shape[2]
    ...         return super().forward(torch.nn.functional.pad(x, (missing, 0)))
    >>> recognised_padding(Causal(4, 4, 3), torch.nn.Conv1d).found
    OwnPadding(parameters=('x', 'before'), padding=((2, 0),))
    """
    kind = type(layer)
    if issubclass(base, torch.nn.modules.conv._ConvTransposeNd) or layer.padding_mode != "zeros":
        return None
    if kind._conv_forward is not base._conv_forward:  # type: ignore[attr-defined]
        return None
    names = _parameters(kind.forward)
    if names is None:
        return None
    read: set[str] = set()
    try:
        probe = _probe(layer, base, read)
        with undone(probe) as done:
            read.clear()
            added = _added(probe, len(names), len(layer.kernel_size))
            unchanged = added is not None and _is_unchanged(probe, layer)
        if added is None or not unchanged or done:
            return None
        steps = layer.stride, layer.dilation, layer.kernel_size
        own = near_and_far(layer.padding, *steps)
        kept = {name: _kept(getattr(layer, name)) for name in sorted(read | _OF_OWN_PADDING)}
    except Exception:  # whatever another's code raises on proxies, a failed assertion included
        return None
    both = zip(added, own, strict=True)
    pairs = tuple((n + near, f + far) for (n, f), (near, far) in both)
    return RecognisedPadding(OwnPadding(names, pairs), kept)


def _added(probe: Any, parameters: int, rank: int) -> Pairs | None:
    """Return the zeros that a pass adds around each mode; None if it does anything else."""
    added = _measured(_traced(lambda x: probe.forward(x)), rank)
    if added is None or parameters == 1:
        return added
    joined = _traced(lambda x, frames: probe.forward(x, frames))
    return added if _puts_before(joined, rank, added) else None


def _kept(value: Any) -> Any:
    """Return an attribute that a pass read, to compare with; refuse what may change unseen."""
    if isinstance(value, Tensor) or (type(value) in _HOLDERS and not _is_plain(value)):
        raise TypeError(f"the values of a {type(value).__name__} may change")
    return deepcopy(value) if type(value) in _HOLDERS else value


def _is_plain(value: Any) -> bool:
    """Return whether a value is a number or a text, or a container of such."""
    if type(value) not in _HOLDERS:
        return type(value) in _NUMBERS
    return all(map(_is_plain, [*value, *(value.values() if type(value) is dict else ())]))


def _parameters(method: Any) -> tuple[str, ...] | None:
    """Return the names of the input, and of a second parameter whose default is None."""
    _, *others = signature(method).parameters.values()
    plain = all(p.kind is Parameter.POSITIONAL_OR_KEYWORD for p in others)
    first, second = [p.default is Parameter.empty for p in others[:2]], others[1:]
    if not plain or not 1 <= len(others) <= 2 or not first[0]:
        return None
    if second and second[0].default is not None:
        return None
    return tuple(p.name for p in others)


def _convolved(x: Any) -> Any:
    """Stand for the convolution in the traced graph: its input is compared."""
    return x


def _probe(layer: Any, base: type, read: set[str]) -> Any:
    """Make an object with copies of a layer's attributes, no tensors, and a recorder for
    ``super().forward``. The names of attributes that a pass reads are added to ``read``.
    """
    theirs: Any = type(layer)

    def forward(self: Any, x: Any, *rest: Any) -> Any:
        if rest or not isinstance(x, fx.Proxy):
            raise TypeError("not the one tensor that a convolution takes")
        return x.tracer.create_proxy("call_function", _convolved, (x,), {})

    def reading(self: Any, name: str) -> Any:
        own = object.__getattribute__(self, "__dict__")
        if name in own or not hasattr(getattr_static(theirs, name, None), "__get__"):
            read.add(name)  # no method or property, whose own reads are seen
        return theirs.__getattribute__(self, name)

    def missing(self: Any, name: str) -> Any:
        if any(name in layer.__dict__[held] for held in ("_parameters", "_buffers", "_modules")):
            raise TypeError(f"it reads `{name}`, whose values may change")
        return theirs.__getattr__(self, name)

    methods = {"__getattribute__": reading, "__getattr__": missing}
    recorder = new_class("Recorder", (base,), exec_body=lambda names: names.update(forward=forward))
    kind = new_class(theirs.__name__, (theirs, recorder), exec_body=lambda n: n.update(methods))
    probe: Any = object.__new__(kind)
    for name, value in _without_tensors(layer).items():  # the pass may write to queues, say
        probe.__dict__[name] = value if isinstance(value, Tensor) else copy(value)
    return probe


def _without_tensors(layer: Any) -> dict[str, Any]:
    """Return a layer's attributes, with None in place of parameters and buffers."""
    tensors = {name: dict.fromkeys(layer.__dict__[name]) for name in ("_parameters", "_buffers")}
    return {**layer.__dict__, **tensors}


def _is_unchanged(probe: Any, layer: Any) -> bool:
    """Return whether a pass left the attributes as they were: one that writes some has to run."""
    before, after = _without_tensors(layer), probe.__dict__
    return before.keys() == after.keys() and all(
        value is before[name]
        or value == before[name]
        or (type(value).__eq__ is object.__eq__ and vars(value) == vars(before[name]))
        for name, value in after.items()
    )


def _traced(function: Any) -> fx.GraphModule:
    """Trace a function with gradients; without them and under autocast it must be the same."""
    with torch.enable_grad(), autocast_everywhere(False):
        found = _traced_once(function)
    with torch.no_grad(), autocast_everywhere(True):
        if found.code != _traced_once(function).code:
            raise TypeError("it depends on autocast, or on whether gradients are wanted")
    return found


def _traced_once(function: Any) -> fx.GraphModule:
    """Trace a function; its result must be the convolution's, and all nodes before it allowed."""
    tracer = fx.Tracer()
    graph = tracer.trace(function)
    *inner, output = graph.nodes
    last = output.args[0]
    if not isinstance(last, fx.Node) or last.target is not _convolved:
        raise TypeError("the result is not the convolution's")
    for node in inner:
        if node is not last and not _is_allowed(node):
            raise TypeError(f"{node.target} may be anything")
    return fx.GraphModule(tracer.root, graph)


def _is_allowed(node: fx.Node) -> bool:
    if node.op == "call_method":  # to another tensor's device
        of_device = [getattr(other, "args", (None,))[-1] == "device" for other in node.args[1:]]
        return node.target == "size" or (node.target == "to" and of_device == [True])
    if node.op == "call_function" and node.target is getattr:
        return node.args[1] in ("shape", "device")
    return node.op == "placeholder" or node.target in _FUNCTIONS


def _example(rank: int, first: int, others: int, offset: int = 0) -> Tensor:
    """Return a tensor whose values all differ, and are not 0."""
    shape = 1, 2, first, *[others] * (rank - 1)
    count = 2 * first * others ** (rank - 1)
    return torch.arange(1.0 + offset, 1.0 + offset + count).view(shape)


def _measured(alone: fx.GraphModule, rank: int) -> Pairs | None:
    """Return the zeros around each mode; None if the pass does anything else."""
    x = _example(rank, *_EXTENTS[0])
    found = alone(x)
    if found.dim() != x.dim() or not found.any():
        return None
    pairs = []
    for mode in range(2, x.dim()):
        used = found.ne(0).movedim(mode, 0).flatten(1).any(1).nonzero()
        pairs.append((int(used[0]), found.shape[mode] - 1 - int(used[-1])))
    added = tuple(pairs)
    tried = (_example(rank, *extents) for extents in _EXTENTS)
    return added if all(torch.equal(alone(x), _padded(x, added)) for x in tried) else None


def _puts_before(joined: fx.GraphModule, rank: int, added: Pairs) -> bool:
    """Return whether frames replace the zeros at the near side of the first mode."""
    reach = added[0][0]
    for first, others in _EXTENTS:
        x = _example(rank, first, others)
        for count in range(1, reach + _BEYOND):
            frames = _example(rank, count, others, 10_000)
            kept = frames[:, :, max(0, count - reach) :]
            expected = x if not reach else torch.cat([kept, x], 2)
            missing = reach - kept.shape[2] if reach else 0
            if not torch.equal(
                joined(x, frames), _padded(expected, ((missing, added[0][1]), *added[1:]))
            ):
                return False
    return True


def _padded(x: Tensor, pairs: Pairs) -> Tensor:
    return pad(x, [side for pair in reversed(pairs) for side in pair])
