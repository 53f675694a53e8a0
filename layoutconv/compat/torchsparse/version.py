"""The version of TorchSparse's interface: 2.1 by default, 1.4 for older projects."""

from __future__ import annotations

from ...errors import ArgumentError

VERSIONS = ("2.1", "1.4")


class _Interface:
    version = VERSIONS[0]


def set_interface(version: str) -> None:
    """Let the coordinates of all tensors follow the convention of a version.

    "2.1": ``(batch, x, y, z)``, in units of a tensor's stride. "1.4", also for 2.0: ``(x, y, z,
    batch)``, multiples of it, as in mmdet3d.

    >>> set_interface("1.4"), batch_last()
    (None, True)
    >>> set_interface("2.1"), batch_last()
    (None, False)
    """
    if version not in VERSIONS:
        raise ArgumentError("version", " or ".join(VERSIONS), version)
    _Interface.version = version


def batch_last() -> bool:
    """Return whether coordinates follow the convention of 1.4."""
    return _Interface.version == "1.4"
