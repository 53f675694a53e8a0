"""Tensors with torch's shape, (N, C, D, H, W), and memory order (N, D, H, W, C)."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor


def channels_last_stride(shape: Sequence[int]) -> tuple[int, ...]:
    """Return the strides of a packed tensor (N, C, ...) whose channels are fastest.

    >>> channels_last_stride((2, 3, 5, 7))
    (105, 1, 21, 3)
    """
    _, channels, *modes = shape
    strides, reach = [], channels
    for extent in reversed(modes):
        strides.append(reach)
        reach = reach * extent
    return (reach, 1, *reversed(strides))


def with_packed_strides(tensor: Tensor) -> Tensor:
    """Return a packed tensor (N, C, ...) with the strides of its order, for modes of extent 1, too.

    Such modes may have any stride: a batch of one image does after ``permute`` and ``unsqueeze``.
    Torch still calls the tensor packed, but its convolutions (2.13) read those strides: with
    groups, sums and gradients of the filter came out wrong. A tensor that is not packed is returned
    as it is.

    >>> import torch
    >>> image = torch.zeros(5, 7, 3).permute(2, 0, 1).unsqueeze(0)
    >>> image.stride(), with_packed_strides(image).stride()
    ((3, 1, 21, 3), (105, 1, 21, 3))
    """
    if 1 not in tensor.shape:
        return tensor
    stride = channels_last_stride(tensor.shape)
    if tensor.stride() == stride:
        return tensor
    if not tensor.movedim(1, -1).is_contiguous():
        if not tensor.is_contiguous():
            return tensor
        stride = contiguous_stride(tensor.shape)
    return tensor if tensor.stride() == stride else tensor.as_strided(tensor.shape, stride)


def contiguous_stride(shape: Sequence[int]) -> tuple[int, ...]:
    """Return the strides of a packed tensor whose last mode is fastest.

    >>> contiguous_stride((2, 3, 5))
    (15, 5, 1)
    """
    strides, reach = [], 1
    for extent in reversed(shape):
        strides.append(reach)
        reach = reach * extent
    return tuple(reversed(strides))


def in_channels_last(tensor: Tensor, shape: tuple[int, ...], stride: tuple[int, ...]) -> Tensor:
    """Return a tensor's elements as a packed tensor of ``shape`` (N, C, ...) that is no view.

    It shares the memory of ``tensor`` if that has the order already; else it is a copy. The shapes
    may differ only in modes of extent 1; ``stride`` is that of :func:`channels_last_stride`. The
    caller must keep no other tensor on the memory.

    >>> import torch
    >>> made = in_channels_last(torch.arange(6).view(1, 2, 1, 3), (1, 2, 3), (6, 1, 2))
    >>> made.tolist(), made.stride(), made._is_view()
    ([[[0, 1, 2], [3, 4, 5]]], (6, 1, 2), False)
    """
    if tensor.stride() == stride and not tensor._is_view():
        return tensor
    if tensor.movedim(1, -1).is_contiguous():
        storage, first = tensor.untyped_storage(), tensor.storage_offset()
        return tensor.new_empty(0).set_(storage, first, shape, stride)
    return tensor.new_empty_strided(shape, stride).copy_(tensor.reshape(shape))
