"""Which TorchSparse tensors are as: 2.1 by default, 1.4 for projects that were written before."""

from __future__ import annotations

from ...errors import ArgumentError

VERSIONS = ("2.1", "1.4")


class _Interface:
    version = VERSIONS[0]


def set_interface(version: str) -> None:
    """Coordinates of all tensors as those of a version.

    "2.1": ``(batch, x, y, z)``, in units of a tensor's stride. "1.4", and 2.0: ``(x, y, z,
    batch)``, multiples of it; so mmdet3d has them.

    >>> set_interface("1.4"), batch_last()
    (None, True)
    >>> set_interface("2.1"), batch_last()
    (None, False)
    """
    if version not in VERSIONS:
        raise ArgumentError("version", " or ".join(VERSIONS), version)
    _Interface.version = version


def batch_last() -> bool:
    """Return whether coordinates are those of 1.4."""
    return _Interface.version == "1.4"
