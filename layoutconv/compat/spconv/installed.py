"""layoutconv under the name of spconv, for programs whose files stay as they are."""

from __future__ import annotations

from ..installing import Installed, install_as
from .absent import MODULES

__all__ = ["Installed", "install"]


def install() -> Installed:
    """Have ``import spconv``, and all its modules, find those of layoutconv.

    Call it before anything imports spconv, say in ``sitecustomize`` or first in a program: then
    frameworks that were installed run as they are. Another spconv that is installed is not touched;
    it is only not found. A second call changes nothing.

    Returns a handle whose ``undo()`` takes it back, also at the end of a ``with``.

    Raises ``RuntimeError`` if another spconv was imported already: what has its classes would not
    know ours.

    >>> with install():
    ...     import spconv.pytorch as spconv
    ...     from spconv.pytorch.utils import PointToVoxel
    >>> spconv.SubMConv3d.__module__
    'layoutconv.compat.spconv.pytorch.conv'
    """
    return install_as("spconv", __name__.rpartition(".")[0], MODULES)
