"""Convolutions with a user's function behind the sums: values and gradients, against torch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

import layoutconv as lc
from layoutconv import pointwise as pw
from layoutconv.errors import ArgumentError, ArgumentTypeError
from layoutconv.ops import dense_calls, sparse_calls
from layoutconv.sparse import Coordinates, SparseTensor

F64 = torch.float64
FORWARD: dict[str, Any] = {
    "conv1d": (lc.conv1d, functional.conv1d, (2, 3, 9), (4, 3, 3), {"padding": 1}),
    "conv2d": (lc.conv2d, functional.conv2d, (2, 4, 7, 6), (6, 2, 3, 2), {"groups": 2}),
    "conv3d": (lc.conv3d, functional.conv3d, (1, 2, 4, 5, 3), (3, 2, 2, 2, 2), {"stride": 2}),
    "depthwise": (lc.conv2d, functional.conv2d, (2, 4, 5, 5), (4, 1, 3, 3), {"groups": 4}),
    "one image": (lc.conv2d, functional.conv2d, (3, 5, 6), (4, 3, 2, 2), {"dilation": 2}),
    "empty sums": (
        lc.conv_transpose1d, functional.conv_transpose1d, (2, 3, 5), (3, 4, 2), {"stride": 3},
    ),
    "transposed": (
        lc.conv_transpose2d, functional.conv_transpose2d, (1, 3, 4, 4), (3, 4, 3, 3), {"stride": 2},
    ),
}  # fmt: skip


def of_columns(x: Any, threshold: Any, by: Any, column: Any) -> Any:
    return pw.where(x > threshold, threshold + by * (x - threshold), x * threshold) + 0.1 * column


def of_columns_in_torch(x: Tensor, threshold: Tensor, by: float) -> Tensor:
    column = torch.arange(x.shape[-1]).to(x.dtype)
    over = threshold + by * (x - threshold)
    return torch.where(x > threshold, over, x * threshold) + 0.1 * column


def of_sources(x: Any, threshold: Any, gate: Any) -> Any:
    return pw.tanh(x * gate) * threshold + gate


def of_sources_in_torch(x: Tensor, threshold: Tensor, gate: Tensor) -> Tensor:
    return (x * gate).tanh() * threshold + gate


def of_rows(x: Any, threshold: Any, weight: Any, row: Any) -> Any:
    return x * weight + threshold * (row % 3)


def of_rows_in_torch(x: Tensor, threshold: Tensor, weight: Tensor) -> Tensor:
    row = torch.arange(len(x)).to(x.dtype)[:, None]
    return x * weight[:, None] + threshold * (row % 3)


def last(t: Tensor, rank: int) -> Tensor:
    """Rows of channels."""
    return t.movedim(-rank - 1, -1).reshape(-1, t.shape[-rank - 1])


def cloud_of(
    shape: tuple[int, ...], rows: int, C: int, dtype: torch.dtype = torch.float32
) -> SparseTensor:
    """Random features at as many cells of one grid."""
    generator = torch.Generator().manual_seed(rows)
    extent = shape[0] * shape[1]
    keys = torch.randperm(extent, generator=generator)[:rows]
    cells = torch.stack([0 * keys, keys // shape[1], keys % shape[1]], 1).int()
    features = torch.randn(rows, C, generator=generator, dtype=torch.float64)
    return SparseTensor(features.to(dtype), cells, shape, batch_size=1)


def leaves(*shapes: Any, dtype: torch.dtype = F64) -> list[Tensor]:
    generator = torch.Generator().manual_seed(7)
    return [
        torch.randn(shape, generator=generator, dtype=dtype).requires_grad_() for shape in shapes
    ]


def compare(ours: Tensor, theirs: Tensor, wanted: list[Tensor]) -> None:
    torch.testing.assert_close(ours, theirs)
    grad = torch.randn(ours.shape, dtype=ours.dtype, generator=torch.Generator().manual_seed(1))
    found = torch.autograd.grad(ours, wanted, grad, retain_graph=True)
    expected = torch.autograd.grad(theirs, wanted, grad, retain_graph=True)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize("kind", ["columns", "sources", "rows"])
@pytest.mark.parametrize("executor", [None, "view"])
@pytest.mark.parametrize("name", FORWARD)
def test_values_and_gradients(name: str, executor: str | None, kind: str) -> None:
    """First calls, warm calls and calls that record nothing are right."""
    ours, theirs, shape, filter_shape, options = FORWARD[name]
    rank = len(filter_shape) - 2
    x, w = leaves(shape, filter_shape)
    like = theirs(x, w, **options)
    K = like.shape[-rank - 1]
    bias, threshold, gate, weight = leaves((K,), (K,), like.shape, (like.numel() // K,))
    wanted = [x, w, bias, threshold]
    z = last(theirs(x, w, bias, **options), rank)
    if kind == "columns":
        step = lc.Pointwise(of_columns, {"threshold": threshold}, values={"by": 0.3})
        made = of_columns_in_torch(z, threshold, 0.3)
    elif kind == "sources":
        step = lc.Pointwise(of_sources, {"threshold": threshold}, sources={"gate": gate})
        made = of_sources_in_torch(z, threshold, last(gate, rank))
        wanted.append(gate)
    else:
        step = lc.Pointwise(of_rows, {"threshold": threshold}, {"weight": weight})
        made = of_rows_in_torch(z, threshold, weight)
        wanted.append(weight)
    want = made.reshape(*[e for i, e in enumerate(like.shape) if i != like.dim() - rank - 1], K)
    want = want.movedim(-1, -rank - 1)
    for _ in range(2):
        y = ours(x, w, bias, **options, activation=step, executor=executor)
        compare(y, want, wanted)
    with torch.no_grad():
        for _ in range(2):
            y = ours(x, w, bias, **options, activation=step, executor=executor)
            torch.testing.assert_close(y, want)


def test_a_call_is_one_function_of_autograd() -> None:
    """Fused: what the function was given is not kept."""
    x, w, low = leaves((1, 3, 5, 5), (4, 3, 3, 3), (4,))
    step = lc.Pointwise(lambda x, low: pw.maximum(x, low), {"low": low})
    dense_calls.forget()
    for _ in range(2):
        y = lc.conv2d(x, w, activation=step)
        assert type(y.grad_fn).__name__ == "RecordedFunctionBackward"
        into = {type(node).__name__ for node, _ in y.grad_fn.next_functions if node is not None}
        assert into == {"AccumulateGrad"}
    assert len(dense_calls.dense) == 1


def test_bias_scale_and_residual_come_before() -> None:
    x, w, bias, residual, low = leaves((1, 3, 5, 5), (4, 3, 2, 2), (4,), (1, 4, 4, 4), (4,))
    scale = torch.rand(4, dtype=F64)
    step = lc.Pointwise(lambda x, low: pw.where(x < low, low * x, x * x), {"low": low})
    sums = functional.conv2d(x, w)
    each = [t.view(-1, 1, 1) for t in (scale, bias, low)]
    for given in (scale, 0.5, scale.clone().requires_grad_()):
        by = given.view(-1, 1, 1) if isinstance(given, Tensor) else given
        z = by * sums + each[1] + residual
        want = torch.where(z < each[2], each[2] * z, z * z)
        y = lc.conv2d(x, w, bias, scale=given, residual=residual, activation=step)
        learned = [given] if isinstance(given, Tensor) and given.requires_grad else []
        compare(y, want, [x, w, bias, residual, low, *learned])


def test_gradients_of_gradients() -> None:
    def call(x: Tensor, w: Tensor, b: Tensor, low: Tensor, gate: Tensor) -> Tensor:
        step = lc.Pointwise(of_sources, {"threshold": low}, sources={"gate": gate})
        return lc.conv2d(x, w, b, padding=1, activation=step)

    given = tuple(leaves((1, 2, 3, 3), (2, 2, 3, 3), (2,), (2,), (1, 2, 3, 3)))
    assert torch.autograd.gradcheck(call, given)
    assert torch.autograd.gradgradcheck(call, given)


def test_a_tensor_under_two_names() -> None:
    x, w, low = leaves((1, 2, 3, 3), (2, 2, 1, 1), (2,))
    step = lc.Pointwise(lambda x, a, b: x * a + b, {"a": low, "b": low})
    y = lc.conv2d(x, w, activation=step)
    compare(y, functional.conv2d(x, w) * low.view(-1, 1, 1) + low.view(-1, 1, 1), [x, w, low])


def test_a_function_of_no_value() -> None:
    x, w, low = leaves((1, 2, 3, 3), (2, 2, 1, 1), (2,))
    y = lc.conv2d(x, w, activation=lc.Pointwise(lambda x, low: low * 2.0, {"low": low}))
    compare(y, (low * 2).view(-1, 1, 1).expand(1, 2, 3, 3) + 0 * x, [x, low])


# -- a backward function -----------------------------------------------------------------------


def clamped_backward(grad: Tensor, result: Tensor, low: Tensor, by: float) -> dict[str, Tensor]:
    """Gradients of ``max(x, low) * by`` from its result alone; those of low are summed later."""
    over = result > low * by
    return {"value": grad * by * over, "low": grad * by * ~over}


@pytest.mark.parametrize("sparse", [False, True])
def test_a_backward_function(sparse: bool) -> None:
    calls = []

    def backward(grad: Tensor, result: Tensor, **named: Any) -> dict[str, Tensor]:
        calls.append((grad.dim(), result.shape, named["low"].shape, named["by"]))
        return clamped_backward(grad, result, **named)

    low = leaves((4,))[0]
    step = lc.Pointwise(
        lambda x, low, by: pw.maximum(x, low) * by, {"low": low}, values={"by": 2.0},
        backward=backward,
    )  # fmt: skip
    if sparse:
        cloud = cloud_of((5, 5), 12, 3, dtype=F64)
        w = leaves((4, 3, 3, 3))[0]
        x = cloud.features.requires_grad_()
        y = lc.subm_conv(cloud.replace(x), w, activation=step).features
        z = lc.subm_conv(cloud.replace(x), w).features
        want = torch.maximum(z, low) * 2
        rows = len(x)
    else:
        x, w = leaves((2, 3, 4, 5), (4, 3, 3, 3))
        y = lc.conv2d(x, w, padding=1, activation=step)
        want = torch.maximum(functional.conv2d(x, w, padding=1), low.view(-1, 1, 1)) * 2
        rows = 40
    compare(y, want, [x, w, low])
    assert calls == [(2, (rows, 4), (4,), 2.0)]


def test_what_a_backward_function_has_to_return() -> None:
    x, w, low = leaves((1, 2, 3, 3), (2, 2, 1, 1), (2,))
    cases: list[tuple[Any, str]] = [
        (3, "a dict of gradients, that of the value as 'value'"),
        ({"low": x}, "a gradient of 'value', a tensor of shape \\(9, 2\\)"),
        ({"value": torch.ones(9, 2)}, "a gradient of 'low', a tensor of shape \\(2,\\)"),
        ({"value": torch.ones(5, 2), "low": low}, "'value' that is summed to shape \\(9, 2\\)"),
        ({"value": torch.ones(9, 2), "lo": low}, "expected gradients of value, low, got .* 'lo'"),
    ]
    for returned, message in cases:

        def backward(*_: Any, returned: Any = returned, **__: Any) -> Any:
            return returned

        step = lc.Pointwise(lambda x, low: x * low, {"low": low}, backward=backward)
        with pytest.raises(ArgumentError, match=f"`backward`: .*{message}"):
            lc.conv2d(x, w, activation=step).sum().backward()


# -- clouds ------------------------------------------------------------------------------------

SPARSE: dict[str, Callable[..., SparseTensor]] = {
    "submanifold": lc.subm_conv,
    "groups": lambda x, w, b, **o: lc.subm_conv(x, w[..., :2], b, groups=2, **o),
    "depthwise": lambda x, w, b, **o: lc.subm_conv(x, w[..., :1], b, groups=4, **o),
    "strided": lambda x, w, b, **o: lc.sparse_conv(x, w, b, 2, 1, **o),
    "transposed": lambda x, w, b, **o: lc.sparse_conv_transpose(x, w, b, 2, **o),
    "inverse": lambda x, w, b, **o: lc.sparse_inverse_conv(
        lc.sparse_conv(x, w[:, :2, :2], None, 2), w[:, :2, :2], b, **o
    ),
}


@pytest.mark.parametrize("kind", ["columns", "sources", "rows"])
@pytest.mark.parametrize("name", SPARSE)
def test_clouds(name: str, kind: str) -> None:
    cloud, call = cloud_of((6, 7), 20, 4, dtype=F64), SPARSE[name]
    x = cloud.features.requires_grad_()
    w, bias, threshold = leaves((4, 3, 3, 4), (4,), (4,))
    for _ in range(2):
        z = call(cloud.replace(x), w, bias).features
        gate, weight = leaves(z.shape, (len(z),))
        wanted = [x, w, bias, threshold]
        if kind == "columns":
            step = lc.Pointwise(of_columns, {"threshold": threshold}, values={"by": 0.3})
            want = of_columns_in_torch(z, threshold, 0.3)
        elif kind == "sources":
            step = lc.Pointwise(of_sources, {"threshold": threshold}, sources={"gate": gate})
            want = of_sources_in_torch(z, threshold, gate)
            wanted.append(gate)
        else:
            step = lc.Pointwise(of_rows, {"threshold": threshold}, {"weight": weight})
            want = of_rows_in_torch(z, threshold, weight)
            wanted.append(weight)
        compare(call(cloud.replace(x), w, bias, activation=step).features, want, wanted)
        with torch.no_grad():
            y = call(cloud.replace(x), w, bias, activation=step).features
            torch.testing.assert_close(y, want)


def test_clouds_share_what_was_found_out() -> None:
    """A cloud of another size takes no second signature; a source of another size is refused."""
    sparse_calls.forget()
    w, low = torch.randn(4, 3, 3, 4), torch.randn(4)
    for rows in (9, 20):
        cloud = cloud_of((6, 7), rows, 4)
        gate = torch.randn(rows, 4)
        step = lc.Pointwise(lambda x, low, gate: x * gate + low, {"low": low}, {}, {"gate": gate})
        y = lc.subm_conv(cloud, w, activation=step).features
        torch.testing.assert_close(y, lc.subm_conv(cloud, w).features * gate + low)
    assert len(sparse_calls.sparse) == 2  # with the function, and without
    wrong = step.with_tensors([low], [], [torch.randn(9, 4)])
    with pytest.raises(ArgumentError, match=r"`gate` of shape \(20, 4\), that of the output"):
        lc.subm_conv(cloud, w, activation=wrong)


def test_cells_that_are_there_twice() -> None:
    cells = torch.tensor([[0, 1, 1], [0, 1, 2], [0, 1, 1]], dtype=torch.int32)
    w, low = leaves((4, 3, 3, 2), (4,))
    coordinates = Coordinates(cells, (4, 4), 1, repeated=True)
    x = SparseTensor(torch.randn(3, 2, dtype=F64), coordinates)
    step = lc.Pointwise(lambda x, low: pw.maximum(x, low), {"low": low})
    y, z = (lc.subm_conv(x, w, activation=a).features for a in (step, None))
    compare(y, torch.maximum(z, low), [w, low])


# -- what looks at calls -----------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_a_result_is_rounded_once(dtype: torch.dtype) -> None:
    """Fused, and by torch where a gradient of the scale is wanted."""
    x, w, low = leaves((1, 8, 5, 5), (4, 8, 3, 3), (4,), dtype=torch.float32)
    low_x, low_w = x.detach().to(dtype), w.detach().to(dtype)
    step = lc.Pointwise(lambda x, low: pw.maximum(x, low) * 1.01, {"low": low})
    sums = functional.conv2d(low_x.float(), low_w.float())
    want = (torch.maximum(sums, low.view(-1, 1, 1)) * 1.01).to(dtype)
    for scale in (None, torch.ones(4), torch.ones(4, requires_grad=True)):
        y = lc.conv2d(low_x, low_w, scale=scale, activation=step)
        torch.testing.assert_close(y, want, rtol=torch.finfo(dtype).eps, atol=0)
        assert y.dtype == dtype


@pytest.mark.parametrize("sparse", [False, True])
def test_autocast_lowers_operands(sparse: bool) -> None:
    low = leaves((4,), dtype=torch.float32)[0]
    step = lc.Pointwise(lambda x, low: pw.maximum(x, low), {"low": low})
    if sparse:
        x, w = cloud_of((6, 7), 20, 4), torch.randn(4, 3, 3, 4, requires_grad=True)

        def call(w: Tensor, step: Any) -> Tensor:
            return lc.subm_conv(x, w, activation=step).features
    else:
        image, w = leaves((1, 4, 5, 5), (4, 4, 3, 3), dtype=torch.float32)

        def call(w: Tensor, step: Any) -> Tensor:
            return lc.conv2d(image, w, activation=step)

    with torch.autocast("cpu", torch.bfloat16):
        for _ in range(2):
            y, z = call(w, step), call(w, None)
            assert y.dtype == torch.bfloat16
            column = low.view(-1, 1, 1) if y.dim() == 4 else low
            torch.testing.assert_close(y, torch.maximum(z.float(), column).bfloat16())
    y.float().sum().backward()
    assert w.grad is not None
    assert low.grad is not None
    assert w.grad.abs().sum() > 0


def test_compiled_graphs() -> None:
    x, w, low = leaves((2, 3, 5, 5), (4, 3, 3, 3), (4,), dtype=torch.float32)
    step = lc.Pointwise(of_columns, {"threshold": low}, values={"by": 0.3})

    def call(x: Tensor, w: Tensor) -> Tensor:
        return lc.conv2d(x, w, padding=1, activation=step) * 2

    torch._dynamo.reset()
    compiled = torch.compile(call, fullgraph=True, backend="aot_eager")
    compare(compiled(x, w), call(x, w), [x, w, low])


def test_transforms_and_checkpoints() -> None:
    x, w, low = leaves((3, 2, 5, 5), (4, 2, 3, 3), (4,))

    def call(x: Tensor, low: Tensor) -> Tensor:
        step = lc.Pointwise(lambda x, low: pw.maximum(x, low), {"low": low})
        return lc.conv2d(x, w, activation=step)

    whole = call(x, low)
    torch.testing.assert_close(torch.vmap(call, (0, None))(x, low), whole)
    found = torch.func.grad(lambda low: call(x, low).square().sum())(low)
    (want,) = torch.autograd.grad(whole.square().sum(), low)
    torch.testing.assert_close(found, want)
    from torch.utils.checkpoint import checkpoint

    y = checkpoint(call, x, low, use_reentrant=False)
    compare(y, call(x, low), [x, w, low])


@pytest.mark.parametrize("records", [False, True])
def test_statistics(records: bool) -> None:
    x, w = (t.detach().requires_grad_(records) for t in leaves((2, 3, 5, 5), (4, 3, 3, 3)))
    step = lc.Pointwise(lambda x: pw.maximum(x, 0.5))
    y, sums = lc.conv2d(x, w, activation=step, return_statistics=True)
    torch.testing.assert_close(y, functional.conv2d(x, w).clamp(min=0.5))
    flat = y.detach().movedim(1, -1).reshape(-1, 4)
    torch.testing.assert_close(sums, torch.stack([flat.sum(0), flat.square().sum(0)]).float())


class Thresholded(torch.nn.Module):
    """As docs/your_own_kernel.md has it: made once, of the module's parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = lc.nn.Conv2d(3, 4, 3)
        self.low = torch.nn.Parameter(torch.zeros(4))
        self.step = lc.Pointwise(lambda x, low: pw.maximum(x, low), {"low": self.low})

    def forward(self, x: Tensor) -> Tensor:
        return lc.conv2d(x, self.conv.weight, self.conv.bias, activation=self.step)


def test_a_module_that_changes_its_dtype() -> None:
    """``double()`` changes the parameter that the function was traced with."""
    net, x = Thresholded(), torch.randn(1, 3, 6, 6)
    torch.testing.assert_close(net(x), net.conv(x).clamp(min=0))
    net.double()
    with torch.no_grad():
        net.low += 0.25
    torch.testing.assert_close(net(x.double()), net.conv(x.double()).clamp(min=0.25))
    assert ":float64|" in net.step.structure


def test_numbers_of_another_step_are_another_signature() -> None:
    x, w = torch.randn(1, 2, 4, 4), torch.randn(3, 2, 1, 1)
    values = {"by": 2.0}
    step = lc.Pointwise(lambda x, by: x * by, values=values)
    z = functional.conv2d(x, w)
    for by in (2.0, 3.0, 2.0):
        values["by"] = by
        torch.testing.assert_close(lc.conv2d(x, w, activation=step), z * by)


# -- errors ------------------------------------------------------------------------------------


@pytest.mark.parametrize("sparse", [False, True])
def test_tensors_that_do_not_fit(sparse: bool) -> None:
    ones = torch.ones
    if sparse:
        cloud = cloud_of((6, 7), 20, 3)

        def call(step: Any) -> Any:
            return lc.subm_conv(cloud, ones(4, 3, 3, 3), activation=step)

        rows, shape = 20, r"\(20, 4\)"
    else:

        def call(step: Any) -> Any:
            return lc.conv2d(ones(2, 3, 4, 5), ones(4, 3, 3, 3), activation=step)

        rows, shape = 12, r"\(2, 4, 2, 3\)"
    cases: list[tuple[Any, Any, str]] = [
        (
            ArgumentError,
            {"columns": {"c": ones(3)}},
            r"`c` of shape \(4,\), a number for each chan",
        ),
        (
            ArgumentError,
            {"rows": {"c": ones(4)}},
            rf"`c` of shape \({rows},\), a number for each r",
        ),
        (ArgumentError, {"sources": {"c": ones(4)}}, f"`c` of shape {shape}, that of the output"),
        (ArgumentTypeError, {"columns": {"c": ones(4).long()}}, "`c` of torch.bfloat16, .*int64"),
        (
            ArgumentTypeError,
            {"columns": {"c": ones(4).double()}},
            "`c` of torch.bfloat16, .*float64",
        ),
        (ArgumentTypeError, {"columns": {"c": ones(4).numpy()}}, "`c` to be a torch tensor"),
    ]
    for error, named, message in cases:
        with pytest.raises(error, match=f"`activation`: expected {message}"):
            call(lc.Pointwise(lambda x, c: x * c, **named))


def test_complex_numbers_and_modules_take_none() -> None:
    step = lc.Pointwise(lambda x: x * 2.0)
    x, w = torch.ones(1, 2, 4, 4, dtype=torch.complex64), torch.ones(3, 2, 1, 1).cfloat()
    with pytest.raises(ArgumentError, match="`activation`: expected None for complex numbers"):
        lc.conv2d(x, w, activation=step)
    with pytest.raises(ArgumentError, match="`activation`: expected None or one of relu"):
        lc.nn.Conv2d(2, 3, 1, activation=step)  # type: ignore[arg-type]
