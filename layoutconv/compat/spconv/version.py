"""The version of spconv's interface: 2.3 by default, 1.2 for older projects."""

from __future__ import annotations

from ...errors import ArgumentError

VERSIONS = ("2.3", "1.2")


class _Interface:
    """The interface of all layers; an attribute, as every call reads it."""

    is_1x = False


INTERFACE = _Interface()


def set_interface(version: str) -> None:
    """Let the tensors and keys of all layers behave as in a version.

    "2.3": features are read-only, and submanifold layers that share a key must have the same sizes.

    "1.2": features may be assigned, as in ``x.features = relu(x.features)``, and modules of
    features in ``SparseSequential`` assign them. All tensors derived from one share their kernel
    maps. A submanifold layer uses the map under its key for any sizes of its own: the first of its
    taps, in C order, are those of the map.

    >>> import torch
    >>> from layoutconv.compat.spconv.pytorch import SparseConvTensor
    >>> x = SparseConvTensor.from_dense(torch.eye(3)[None, :, :, None])
    >>> set_interface("1.2")
    >>> x.features += 1
    >>> x.features.T, set_interface("2.3")
    (tensor([[2., 2., 2.]]), None)
    """
    INTERFACE.is_1x = is_old(version)


def is_old(version: str) -> bool:
    """Return whether a version is "1.2"; raise for an unknown version.

    >>> is_old("1.2"), is_old("2.3")
    (True, False)
    """
    if version not in VERSIONS:
        raise ArgumentError("version", " or ".join(VERSIONS), version)
    return version == VERSIONS[1]
