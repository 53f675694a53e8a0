"""Networks as ONNX: translations of this package's operators for ``torch.onnx.export``.

Dense convolutions become ONNX's ``Conv`` and ``ConvTranspose``, followed by the nodes of their
epilogue. Operators of sparse networks have no counterpart: they become nodes of the domain
``layoutconv``, version 1, named like the operators. A node's inputs are the operator's tensors and
row counts, in the order of the schema, absent ones empty. Its attributes are all else: integers,
booleans as integers, strings, lists of integers. ``torch.ops.layoutconv.NAME.default._schema``
defines the node, and the operator's documentation describes it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from importlib import import_module
from typing import Any

import torch

from ..errors import ArgumentError

DOMAIN, VERSION = "layoutconv", 1
SPARSE = (
    "neighbours", "reached_cells", "reversed_index", "sparse_conv", "sparse_depthwise",
    "sparse_pool", "sparse_global_pool", "by_taps", "map_pairs",
)  # fmt: skip
ROWS = frozenset({"rows", "capacity"})  # numbers that depend on data
_KINDS = ["float16", "bfloat16", "float", "double", "int8", "int32", "int64", "bool"]


def onnx_translations() -> dict[Any, Callable[..., Any]]:
    """Return translations for ``torch.onnx.export(..., custom_translation_table=)``.

    They serve networks in evaluation, dense or sparse, with fused activations and scales. Dense
    networks need only ONNX itself; sparse ones have nodes of the domain ``layoutconv``, which the
    runtime has to implement. Install ``layoutconv[onnx]``.

    Raises ``ImportError`` without that; the exporter's errors name what ONNX cannot express, such
    as padding below zero.

    >>> import importlib.util
    >>> if importlib.util.find_spec("onnxscript"):
    ...     assert torch.ops.layoutconv.conv_fprop.default in onnx_translations()
    """
    from ..ops import dense_calls, sparse_operators  # noqa: F401, the import registers them

    try:
        defs = import_module("onnx.defs")
        opset18 = import_module("onnxscript").opset18
        values = import_module("onnxscript.values")
    except ImportError as missing:
        raise ImportError(
            "ONNX export needs `onnx` and `onnxscript`: pip install 'layoutconv[onnx]'"
        ) from missing
    domain = values.Opset(DOMAIN, VERSION)
    made: dict[Any, Callable[..., Any]] = {
        torch.ops.layoutconv.conv_fprop.default: partial(_conv, opset18),
        torch.ops.layoutconv.conv_dgrad.default: partial(_conv_transpose, opset18),
    }
    for name in SPARSE:
        operator = getattr(torch.ops.layoutconv, name).default
        node = values.Op(domain, name, _node_schema(defs, operator._schema))
        inputs = [a.name for a in operator._schema.arguments if _is_input(a)]
        made[operator] = partial(_of_domain, opset18, node, inputs)
    return {operator: _by_name(operator._schema, make) for operator, make in made.items()}


def _by_name(schema: Any, make: Callable[[dict[str, Any]], Any]) -> Callable[..., Any]:
    """Make a function that passes an operator's arguments to ``make``, by name."""

    def translated(*arguments: Any, **named: Any) -> Any:
        names = [argument.name for argument in schema.arguments]
        defaults = {a.name: a.default_value for a in schema.arguments if a.has_default_value()}
        return make({**defaults, **dict(zip(names, arguments, strict=False)), **named})

    return translated


# -- dense -----------------------------------------------------------------------------------------


def _conv(op: Any, given: dict[str, Any]) -> Any:
    return _ended(op, partial(op.Conv, **_numbers(given)), (given["x"], given["w"]), given)


def _conv_transpose(op: Any, given: dict[str, Any]) -> Any:
    y, w, spatial = given["y"], given["w"], given["spatial"]
    stride, padding, dilation = (given[name] for name in ("stride", "padding", "dilation"))
    taps, read = list(w.shape[2:]), list(y.shape[2:])
    if not all(isinstance(extent, int) for extent in (*spatial, *read)):
        raise ArgumentError("spatial", "constant sizes for a transposed convolution", spatial)
    pairs = zip(padding[::2], padding[1::2], strict=True)
    modes = zip(spatial, read, stride, pairs, dilation, taps, strict=True)
    more = [e - ((z - 1) * s - sum(p) + d * (t - 1) + 1) for e, z, s, p, d, t in modes]
    node = partial(op.ConvTranspose, output_padding=more, **_numbers(given))
    return _ended(op, node, (y, w), given)


def _numbers(given: dict[str, Any]) -> dict[str, Any]:
    padding = given["padding"]
    if min(padding, default=0) < 0:
        raise ArgumentError(
            "padding", "padding >= 0, as ONNX has no negative padding", list(padding)
        )
    return {
        "strides": list(given["stride"]), "pads": [*padding[::2], *padding[1::2]],
        "dilations": list(given["dilation"]), "group": given["groups"],
    }  # fmt: skip


def _ended(op: Any, node: Any, operands: tuple[Any, Any], given: dict[str, Any]) -> Any:
    """Add the nodes of ``activation(scale * sum + bias + residual)``; without a scale, the
    convolution's node adds the bias.
    """
    if given["out_dtype"] is not None:
        raise ArgumentError(
            "out_dtype", "None in a network that is exported to ONNX", given["out_dtype"]
        )

    def along_channels(tensor: Any) -> Any:
        modes = op.Constant(value_ints=list(range(1, 1 + len(given["stride"]))))
        return op.Unsqueeze(tensor, modes)

    bias, scale, residual = given["bias"], given["scale"], given["residual"]
    if scale is not None or bias is None:
        value = node(*operands)
    else:
        value, bias = node(*operands, bias), None
    if scale is not None:
        value = op.Mul(value, along_channels(scale))
    if bias is not None:
        value = op.Add(value, along_channels(bias))
    if residual is not None:
        value = op.Add(value, residual)
    kind = given["activation"]
    return value if kind is None else _activated(op, value, kind, given["slope"])


def _activated(op: Any, value: Any, kind: str, slope: float) -> Any:
    def constant(number: float) -> Any:
        return op.CastLike(op.Constant(value_float=number), value)

    if kind == "leaky_relu":
        return op.LeakyRelu(value, alpha=slope)
    if kind == "relu6":
        return op.Clip(value, constant(0.0), constant(6.0))
    if kind == "silu":
        return op.Mul(value, op.Sigmoid(value))
    if kind in ("gelu", "gelu_tanh"):
        if kind == "gelu":
            inner = op.Erf(op.Mul(value, constant(0.5**0.5)))
        else:
            cube = op.Mul(constant(0.044715), op.Mul(value, op.Mul(value, value)))
            inner = op.Tanh(op.Mul(constant((2 / torch.pi) ** 0.5), op.Add(value, cube)))
        return op.Mul(op.Mul(constant(0.5), value), op.Add(constant(1.0), inner))
    names = {"relu": "Relu", "sigmoid": "Sigmoid", "tanh": "Tanh", "hardswish": "HardSwish"}
    return getattr(op, names[kind])(value)


# -- sparse: nodes of this package's domain --------------------------------------------------------


def _is_input(argument: Any) -> bool:
    """Return whether an argument depends on data: tensors, and row counts."""
    return "Tensor" in str(argument.type) or argument.name in ROWS


def _node_schema(defs: Any, schema: Any) -> Any:
    """Return the schema of a node, from the schema of an operator."""
    parameter, option = defs.OpSchema.FormalParameter, defs.OpSchema.FormalParameterOption
    every = [f"tensor({kind})" for kind in _KINDS]
    inputs = [
        parameter(a.name, f"T{i}", "", param_option=option.Optional)
        for i, a in enumerate(a for a in schema.arguments if _is_input(a))
    ]
    outputs = [parameter(f"y{i}", f"R{i}", "") for i in range(len(schema.returns))]
    types = [(p.type_str, every, "") for p in (*inputs, *outputs)]
    attributes = [
        defs.OpSchema.Attribute(a.name, _attribute_kind(defs, a), "", required=False)
        for a in schema.arguments
        if not _is_input(a)
    ]
    return defs.OpSchema(
        schema.name.split("::")[1], DOMAIN, VERSION,
        inputs=inputs, outputs=outputs, type_constraints=types, attributes=attributes,
    )  # fmt: skip


def _attribute_kind(defs: Any, argument: Any) -> Any:
    kinds, kind = defs.OpSchema.AttrType, str(argument.type)
    if "List" in kind:
        return kinds.INTS
    if "str" in kind:
        return kinds.STRING
    return kinds.FLOAT if "float" in kind else kinds.INT


def _of_domain(op: Any, node: Any, inputs: Sequence[str], given: dict[str, Any]) -> Any:
    """Make a node of the domain from an operator's arguments; ``inputs`` are the node's."""
    if given.get("out_dtype") is not None:
        raise ArgumentError(
            "out_dtype", "None in a network that is exported to ONNX", given["out_dtype"]
        )
    operands = [given.get(name) for name in inputs]
    operands = [op.Constant(value_int=o) if isinstance(o, int) else o for o in operands]
    while operands and operands[-1] is None:
        operands.pop()
    attributes = {
        name: int(value) if isinstance(value, bool) else value
        for name, value in given.items()
        if name not in inputs and value is not None
    }
    return node(*operands, **attributes)
