"""Private names of torch, each with a fallback for versions of torch without it.

No other file uses private names. If a public function answers the same question, it is the
fallback, and slower. If there is none, the fallback assumes the worst: something intercepts the
call, which then takes torch's dispatcher.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any, TypeVar

import torch
from torch.autograd import forward_ad
from torch.overrides import has_torch_function

T = TypeVar("T")


def private(path: str, stand_in: Any) -> Any:
    """Return the attribute at ``path``, a module and a name; else ``stand_in``.

    >>> private("torch._C:_len_torch_function_stack", None)()
    0
    >>> private("torch._C:no_such_name", None), private("torch.no_such_module:name", 3)
    (None, 3)
    """
    module, _, name = path.partition(":")
    try:
        return getattr(import_module(module), name, stand_in)
    except ImportError:
        return stand_in


# -- stand-ins ------------------------------------------------------------------------------------


def supposed(*_: Any) -> bool:
    """Assume that something intercepts calls."""
    return True


def unknown_mode() -> list[None]:
    """Assume one mode that intercepts everything."""
    return [None]


def functions_may_look() -> bool:
    """Return whether a mode intercepts functions of torch, by a public function."""
    return bool(has_torch_function((_PROBE,)))


def autocast_is_on() -> bool:
    """Return whether autocast is on for devices that convolve, by public functions."""
    return torch.is_autocast_enabled("cpu") or torch.is_autocast_enabled("cuda")


def never(_: Any) -> bool:
    """Find no tensor of a transform: code that would refuse one leaves it to torch."""
    return False


def not_begun(*_: Any) -> None:
    """Raise ``RuntimeError``: it is unknown how to end or release a pool."""
    raise RuntimeError("this torch does not say how")


def added_each(tensors: list[Any], others: list[Any]) -> None:
    """Add the other tensors, one by one."""
    for tensor, other in zip(tensors, others, strict=True):
        tensor.add_(other)


def copied_each(tensors: list[Any], others: list[Any]) -> None:
    """Copy the other tensors, one by one."""
    for tensor, other in zip(tensors, others, strict=True):
        tensor.copy_(other)


def counted_each(tensors: Sequence[Any]) -> None:
    """Count a write to each tensor, one by one."""
    for tensor in tensors:
        torch.autograd.graph.increment_version(tensor)


def others_each_time(_: Any) -> object:
    """Assume that interceptors are never the same as before."""
    return object()


def itself(tensor: Any) -> Any:
    """Return a tensor as it is, assuming that it wraps no other."""
    return tensor


class Levels:
    """The level of forward-mode differentiation, like the module ``forward_ad`` has it."""

    @property
    def _current_level(self) -> int:
        try:
            forward_ad.make_dual(_PROBE, _PROBE)  # type: ignore[no-untyped-call]
        except RuntimeError:  # outside of every level
            return -1
        return 0


_PROBE = torch.zeros(1)

# -- names ----------------------------------------------------------------------------------------

# Guards of torch.compile, which compare tensors with earlier ones in C; None without them.
TENSOR_GUARDS: Any = private("torch._C._dynamo.guards:TensorGuards", None)

# ``f()``: how many modes intercept functions, and operators.
functions_that_look: Callable[[], int] = private(
    "torch._C:_len_torch_function_stack", functions_may_look
)
operators_that_look: Callable[[], int] = private("torch._C:_len_torch_dispatch_stack", supposed)

# ``f()``: the modes that intercept functions; for fallbacks, it is unknown what they intercept.
function_modes: Callable[[], Sequence[Any]] = private(
    "torch.overrides:_get_current_function_mode_stack", unknown_mode
)

# ``levels._current_level``: -1 outside of forward-mode differentiation.
levels: Any = forward_ad if hasattr(forward_ad, "_current_level") else Levels()

is_tracing: Callable[[], bool] = private("torch._C:_is_tracing", torch.jit.is_tracing)
is_any_autocast_enabled: Callable[[], bool] = private(
    "torch._C:_is_any_autocast_enabled", autocast_is_on
)

# ``f()``: whether there are hooks that all modules call.
has_global_hooks: Callable[[], bool] = private(
    "torch.nn.modules.module:_has_any_global_hook", supposed
)

# ``f(False)``: the hooks on tensors that autograd saves, such as a checkpoint's; None if none.
saved_tensors_hooks_on_top: Callable[[bool], Any] = private(
    "torch._C._autograd:_top_saved_tensors_default_hooks", others_each_time
)
try:
    saved_tensors_hooks_on_top(False)
except TypeError:  # a version of torch whose function takes no arguments
    saved_tensors_hooks_on_top = others_each_time

# ``f(node)``, in a backward pass: whether it will execute a node of the graph. It raises
# RuntimeError for a leaf whose gradient ``torch.autograd.grad`` computes.
comes_to: Callable[[Any], bool] = private("torch._C:_will_engine_execute_node", supposed)

# ``f()``, in a backward pass: whether saved tensors are kept, as another pass may follow.
keeps_graph: Callable[[], bool] = private(
    "torch._C._autograd:_get_current_graph_task_keep_graph", supposed
)

# ``f()``: whether oneDNN multiplies bfloat16 on this CPU, and sums the products in fp32.
sums_bfloat16: Callable[[], bool] = getattr(
    torch.ops.mkldnn, "_is_mkldnn_bf16_supported", lambda: False
)

# torch.func: the transform on top or None, and the number of transforms.
transform_on_top: Callable[[], Any] = private(
    "torch._C._functorch:peek_interpreter_stack", supposed
)
_transforms: Callable[[], int] = private(
    "torch._C._functorch:get_dynamic_layer_stack_depth", supposed
)


def asked_while_tracing(function: Callable[[], T]) -> Callable[[], T]:
    """Decorate a function that torch.compile calls while it traces; its result is a constant.

    So does ``torch.compiler.assume_constant_result``, which would import the compiler here: 1.1 s.
    """
    function._dynamo_marked_constant = True  # type: ignore[attr-defined]
    return function


@asked_while_tracing
def transforms_look() -> bool:
    """Return whether transforms of ``torch.func`` intercept what is computed.

    While tracing, torch.compile traces transforms by entering them, and compiles again under
    others; before torch 2.12 it cannot trace the private function at all. The number itself may
    become a symbol if sizes are dynamic.

    >>> transforms_look()
    False
    """
    return _transforms() > 0


# torch.autograd.grad(is_grads_batched=True), which is neither a transform nor a mode.
is_batched: Callable[[Any], bool] = private("torch._C._functorch:is_legacy_batchedtensor", supposed)


is_gradient_tracked: Callable[[Any], bool] = private(
    "torch._C._functorch:is_gradtrackingtensor", never
)
is_batch_of_transform: Callable[[Any], bool] = private(
    "torch._C._functorch:is_batchedtensor", never
)
unwrapped: Callable[[Any], Any] = private("torch._C._functorch:get_unwrapped", itself)

# ``f()``: whether the current stream captures a CUDA graph; asked at each launch over a map.
is_capturing: Callable[[], bool] = private(
    "torch._C:_cuda_isCurrentStreamCapturing", lambda: torch.cuda.is_current_stream_capturing()
)

# ``f(device, pool)``: streams stop allocating from a pool; then: the pool is no longer needed.
end_of_pool: Callable[..., None] = private(
    "torch._C:_cuda_endAllocateToPool",
    private("torch._C:_cuda_endAllocateCurrentStreamToPool", not_begun),
)
release_pool: Callable[..., None] = private("torch._C:_cuda_releasePool", not_begun)

# One launch for many tensors.
add_to_each: Callable[[list[Any], list[Any]], object] = private("torch:_foreach_add_", added_each)
copy_to_each: Callable[[list[Any], list[Any]], object] = private(
    "torch:_foreach_copy_", copied_each
)

# ``f(tensors)``: count a write to each that no operator of torch made; a single tensor is refused.
increment_versions: Callable[[Sequence[Any]], object] = private(
    "torch._C:_increment_version", counted_each
)
try:
    increment_versions((_PROBE,))
except (TypeError, RuntimeError):  # a version of torch whose function takes one tensor
    increment_versions = counted_each


def empty_strided_on(kind: str) -> Any:
    """Return ``f(shape, stride, dtype)``, torch's allocator without dispatcher, or None.

    >>> empty_strided_on("cpu")((2, 3), (1, 2), torch.int32).stride()
    (1, 2)
    >>> empty_strided_on("meta")
    """
    return private(f"torch._C._dynamo.guards:_empty_strided_{kind}", None)


# ``f(tensor, shape, stride)``: a tensor's memory from its start in another shape, unseen by the
# dispatcher and autograd, in half the time of the operator.
in_shape: Callable[..., torch.Tensor] = private(
    "torch._C._dynamo.guards:_reinterpret_tensor", torch.Tensor.as_strided
)


# The package whose code stands between ``apply`` of a ``torch.autograd.Function`` and C++, by name.
FUNCTORCH = "torch._functorch"


def reader_of(library: Any) -> Callable[[], str]:
    """Return a function that tells how convolutions of ``library``, a torch, multiply float32.

    It returns "tf32" or "fp32". It calls the private functions behind the public attributes, in 0.1
    us instead of 0.5 to 0.9, as each call of a float32 convolution asks.

    >>> reader_of(torch)() in ("tf32", "fp32")
    True
    """
    precision = getattr(library._C, "_get_fp32_precision_getter", None)
    if precision is not None:
        return lambda: "tf32" if precision("cuda", "conv") == "tf32" else "fp32"
    cudnn = library.backends.cudnn
    if hasattr(getattr(cudnn, "conv", None), "fp32_precision"):
        return lambda: "tf32" if cudnn.conv.fp32_precision == "tf32" else "fp32"
    allowed = getattr(library._C, "_get_cudnn_allow_tf32", lambda: cudnn.allow_tf32)
    return lambda: "tf32" if allowed() else "fp32"
