"""An exported network as data: its operators in order, called by a loop.

``torch.export.load`` takes more than a second; a list of operator names loads in milliseconds and
holds no code: targets are operators of torch and of this package, and arithmetic on sizes.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from importlib import import_module
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..errors import ArgumentError, ArgumentTypeError

OPERATOR = type(torch.ops.aten.relu.default)
NAMESPACES = ("aten", "prims", "layoutconv")
# Modules of ``ops`` that register operators, by name prefix: a dense network loads no others.
REGISTER = {
    "layoutconv.conv_": ("dense_calls",),
    "layoutconv.": ("sparse_operators", "gathered_operators"),
}
ARITHMETIC = {
    name: getattr(operator, name)
    for name in (
        "getitem", "add", "sub", "mul", "floordiv", "truediv", "mod", "neg", "pow", "eq", "ne",
        "lt", "le", "gt", "ge", "and_", "or_", "not_",
    )
}  # fmt: skip
SYMBOLIC = {
    name: getattr(torch, name)
    for name in ("sym_max", "sym_min", "sym_int", "sym_float", "sym_not", "sym_ite", "sym_sum")
    if hasattr(torch, name)
}
# Types of torch constants that operators take as arguments, by name.
KINDS = {"dtype": torch.dtype, "layout": torch.layout, "memory_format": torch.memory_format}
DEVICE = "device"  # stands for the device that the program runs on


class NetworkProgram(NamedTuple):
    """A network as data that JSON can hold.

    Attributes:
        weights: names of the weights, which are the first values of a run.
        inputs: the ``name``, ``dtype`` and ``shape`` of each input; they are the values after the
            weights. A dynamic extent is a list: its name, its minimum and its maximum.
        steps: target, arguments and named arguments of each; a step makes the next value.
        results: the returned values or constants; ``structure`` says how these nest.
    """

    weights: list[str]
    inputs: list[dict[str, Any]]
    steps: list[list[Any]]
    results: list[Any]
    structure: Any


def exported(
    net: torch.nn.Module, example: tuple[Tensor, ...], dynamic_shapes: Any = None
) -> tuple[NetworkProgram, dict[str, Tensor]]:
    """Export a network for arguments like an example, with the weights on the CPU.

    Raises :class:`~layoutconv.errors.ArgumentError` for a network that is not one graph of
    operators of torch and of this package, or that changes its buffers.
    """
    training = [name for name, module in net.named_modules() if module.training]
    if training:
        got = f"`{training[0] or type(net).__name__}` in training mode"
        raise ArgumentError("net", "a network in evaluation mode: call net.eval() first", got)
    with torch.no_grad():
        program = torch.export.export(net, example, dynamic_shapes=dynamic_shapes, strict=False)
    signature = program.graph_signature
    for output in signature.output_specs:
        if output.kind.name != "USER_OUTPUT":
            got = f"one that changes {output.target}"
            raise ArgumentError(
                "net", "a network whose forward pass changes none of its buffers", got
            )
    kept = {**program.state_dict, **program.constants}
    weights, inputs = [], []
    nodes = iter(program.graph.nodes)
    places: dict[Any, int] = {}
    for spec, node in zip(signature.input_specs, nodes, strict=False):
        if spec.kind.name == "USER_INPUT":
            inputs.append(_input_of(node, program.range_constraints))
        elif isinstance(kept.get(spec.target), torch.Tensor) and not inputs:
            weights.append(str(spec.target))
        else:
            raise ArgumentError("net", "weights and buffers that are tensors", f"{spec.target}")
        places[node] = len(places)
    steps, results = [], []
    for node in nodes:
        if node.op == "output":
            results = [_encoded(each, places) for each in node.args[0]]
        else:
            steps.append(_step_of(node, places))
            places[node] = len(places)
    structure = _structure(program.call_spec.out_spec.unflatten(range(len(results))))
    found = {name: kept[name].detach().cpu() for name in weights}
    return NetworkProgram(weights, inputs, steps, results, structure), found


def _input_of(node: Any, ranges: Mapping[Any, Any]) -> dict[str, Any]:
    value = node.meta["val"]
    shape: list[Any] = []
    for extent in value.shape:
        if isinstance(extent, int):
            shape.append(extent)
            continue
        bounds = ranges.get(extent.node.expr)
        limits = [None, None] if bounds is None else [_number(bounds.lower), _number(bounds.upper)]
        shape.append([str(extent), *limits, *_affine(extent.node.expr)])
    return {"name": node.name, "dtype": _constant(value.dtype), "shape": shape}


def _affine(extent: Any) -> list[Any]:
    """Return symbol, factor and offset of an extent such as ``2*n + 1``; ``[]`` for ``n`` alone.

    >>> import sympy
    >>> n = sympy.Symbol("n")
    >>> _affine(2 * n + 1), _affine(n)
    (['n', 2, 1], [])
    """
    symbols = list(extent.free_symbols)
    if extent.is_Symbol or len(symbols) != 1:
        return []
    factor, offset = extent.coeff(symbols[0]), extent.subs(symbols[0], 0)
    if extent != factor * symbols[0] + offset:
        return []
    return [str(symbols[0]), int(factor), int(offset)]


def _number(bound: Any) -> int | None:
    try:
        return int(bound)
    except (TypeError, OverflowError, ValueError, AttributeError):
        return None  # infinite


def _step_of(node: Any, places: Mapping[Any, int]) -> list[Any]:
    if node.op != "call_function":
        raise ArgumentError("net", "one graph of operators", f"a node {node.op} {node.target}")
    named = {name: _encoded(value, places) for name, value in node.kwargs.items()}
    return [_name_of(node.target), [_encoded(value, places) for value in node.args], named]


def _name_of(target: Any) -> str:
    name = str(target)
    if isinstance(target, OPERATOR) and name.split(".")[0] in NAMESPACES:
        return name
    for prefix, known in (("operator", ARITHMETIC), ("torch", SYMBOLIC)):
        for short, function in known.items():
            if function is target:
                return f"{prefix}.{short}"
    raise ArgumentError("net", "only operators of torch and of layoutconv", name)


def _encoded(value: Any, places: Mapping[Any, int]) -> Any:
    if isinstance(value, torch.fx.Node):
        return {"value": places[value]}
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, list | tuple):
        return [_encoded(each, places) for each in value]
    if isinstance(value, torch.device):
        return {DEVICE: True}
    for kind, of in KINDS.items():
        if isinstance(value, of):
            return {kind: _constant(value)}
    raise ArgumentError("net", "arguments that are tensors, numbers and names", repr(value))


def _constant(value: Any) -> str:
    return str(value).removeprefix("torch.")


def _structure(value: Any) -> Any:
    if isinstance(value, int):
        return value
    if isinstance(value, dict):
        for key in value:
            if not isinstance(key, str | int):
                raise ArgumentError("net", "results in dicts of names or numbers", repr(key))
        return {"dict": [[key, _structure(each)] for key, each in value.items()]}
    if type(value) in (list, tuple):
        return {type(value).__name__: [_structure(each) for each in value]}
    raise ArgumentError("net", "results in tuples, lists and dicts", type(value).__name__)


# -- run ------------------------------------------------------------------------------------------


class ProgramRunner:
    """A program on a device; call it with its inputs.

    Raises :class:`~layoutconv.errors.ArgumentError`, of ``path``, if the program names anything but
    operators of torch and of this package.
    """

    def __init__(self, program: NetworkProgram, weights: Mapping[str, Tensor], device: Any) -> None:
        self.device, self.inputs = torch.device(device), program.inputs
        self._weights = [weights[name].to(self.device) for name in program.weights]
        before = len(self._weights) + len(self.inputs)
        self._steps = [
            (target_of(name), self._decoded(arguments), self._decoded(named))
            for name, arguments, named in program.steps
        ]
        self._names = [name for name, *_ in program.steps]
        self._results, self._as = self._decoded(program.results), program.structure
        self._last = self._last_uses(before)

    def __call__(self, *inputs: Tensor) -> Any:
        self._check(inputs)
        values: list[Any] = [*self._weights, *inputs]
        for at, (target, arguments, named) in enumerate(self._steps):
            given = [_filled(each, values) for each in arguments]
            values.append(target(*given, **{n: _filled(v, values) for n, v in named.items()}))
            for done in self._last[at]:
                values[done] = None
        return _arranged(self._as, [_filled(each, values) for each in self._results])

    def watch(self, name: str, told: Callable[..., object]) -> None:
        """Pass the arguments of every later call of an operator to a function, before the call."""

        def watched(target: Callable[..., Any], *arguments: Any) -> Any:
            told(*arguments)
            return target(*arguments)

        self._steps = [
            (partial(watched, target) if of == name else target, *rest)
            for of, (target, *rest) in zip(self._names, self._steps, strict=True)
        ]

    def _check(self, inputs: Sequence[Any]) -> None:
        if len(inputs) != len(self.inputs):
            count = len(self.inputs)
            raise ArgumentError("inputs", f"{count} tensor{'s' * (count != 1)}", len(inputs))
        sizes: dict[str, int] = {}
        for given, want in zip(inputs, self.inputs, strict=True):
            name, dtype = want["name"], getattr(torch, want["dtype"])
            if not isinstance(given, torch.Tensor):
                raise ArgumentTypeError(name, f"a tensor of {dtype}", type(given).__name__)
            if given.dtype is not dtype:
                raise ArgumentTypeError(name, f"a tensor of {dtype}", given.dtype)
            if given.layout is not torch.strided or given.is_nested:
                found = "a nested tensor" if given.is_nested else given.layout
                raise ArgumentTypeError(name, "a tensor of torch.strided layout", found)
            if given.device.type != self.device.type:
                raise ArgumentError(name, f"a tensor on {self.device}", given.device)
            fits = given.dim() == len(want["shape"]) and all(
                _fits(size, extent, sizes)
                for size, extent in zip(given.shape, want["shape"], strict=True)
            )
            if not fits:
                expected = ", ".join(map(_shape_word, want["shape"]))
                raise ArgumentError(name, f"the shape ({expected})", tuple(given.shape))
        for given, want in zip(inputs, self.inputs, strict=True):
            _check_derived(want["name"], given.shape, want["shape"], sizes)

    def _decoded(self, value: Any) -> Any:
        """Decode an argument: values become places, constants become torch's objects."""
        if isinstance(value, list):
            return [self._decoded(each) for each in value]
        if not isinstance(value, dict):
            return value
        if len(value) == 1:
            ((kind, name),) = value.items()
            if kind == "value" and isinstance(name, int):
                return _ValueIndex(name)
            if kind == DEVICE and name is True:
                return self.device
            if kind in KINDS and isinstance(found := getattr(torch, str(name), None), KINDS[kind]):
                return found
        return {name: self._decoded(each) for name, each in value.items()}

    def _last_uses(self, before: int) -> list[list[int]]:
        """Return the values that each step uses last; weights, inputs and results stay."""
        last: dict[int, int] = {before + at: at for at in range(len(self._steps))}
        for at, (_, arguments, named) in enumerate(self._steps):
            last.update((place.at, at) for place in _places(arguments) if place.at in last)
            last.update((place.at, at) for place in _places(named) if place.at in last)
        for place in _places(self._results):
            last.pop(place.at, None)
        ends: list[list[int]] = [[] for _ in self._steps]
        for value, at in last.items():
            ends[at].append(value)
        return ends


class _ValueIndex(NamedTuple):
    """The index of a value among those of a run."""

    at: int


def _places(value: Any) -> Iterator[_ValueIndex]:
    if isinstance(value, _ValueIndex):
        yield value
    elif isinstance(value, list):
        for each in value:
            yield from _places(each)
    elif isinstance(value, dict):
        for each in value.values():
            yield from _places(each)


def _filled(value: Any, values: list[Any]) -> Any:
    if isinstance(value, _ValueIndex):
        return values[value.at]
    if isinstance(value, list):
        return [_filled(each, values) for each in value]
    return value


def _arranged(structure: Any, results: list[Any]) -> Any:
    if isinstance(structure, int):
        return results[structure]
    ((kind, parts),) = structure.items()
    if kind == "dict":
        return {name: _arranged(each, results) for name, each in parts}
    made = [_arranged(each, results) for each in parts]
    return tuple(made) if kind == "tuple" else made


def target_of(name: str) -> Callable[..., Any]:
    """Return the operator, or the arithmetic on sizes, that a step of a program names."""
    home, _, rest = name.partition(".")
    known = {"operator": ARITHMETIC, "torch": SYMBOLIC}.get(home)
    if known is not None and rest in known:
        return known[rest]  # type: ignore[no-any-return]
    if home in NAMESPACES and rest.count(".") == 1:
        begins = next((prefix for prefix in REGISTER if name.startswith(prefix)), "")
        for module in REGISTER.get(begins, ()):
            import_module(f"..ops.{module}", __package__)
        operation, _, overload = rest.partition(".")
        try:
            found = getattr(getattr(getattr(torch.ops, home), operation), overload)
        except AttributeError:
            found = None
        if isinstance(found, OPERATOR):
            return found
    raise ArgumentError("path", "operators that this torch and this layoutconv have", repr(name))


def _fits(size: int, extent: Any, sizes: dict[str, int]) -> bool:
    if isinstance(extent, int):
        return size == extent
    name, least, most, *_ = extent
    known = sizes.setdefault(name, size)
    return known == size and (least is None or size >= least) and (most is None or size <= most)


def _check_derived(
    name: str, shape: Sequence[int], want: Sequence[Any], sizes: Mapping[str, int]
) -> None:
    """Raise if an extent such as ``2*n`` does not match the n of another input."""
    for size, extent in zip(shape, want, strict=True):
        if isinstance(extent, int) or len(extent) == 3:
            continue
        word, _, _, symbol, factor, offset = extent
        if symbol in sizes and size != sizes[symbol] * factor + offset:
            expected = f"an extent of {word}, where {symbol} is {sizes[symbol]}"
            raise ArgumentError(name, expected, tuple(shape))


def _shape_word(extent: Any) -> str:
    if isinstance(extent, int):
        return str(extent)
    name, least, most, *_ = extent
    return f"{name} from {least or 0}" + ("" if most is None else f" to {most}")
