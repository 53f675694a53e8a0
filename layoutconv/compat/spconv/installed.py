"""layoutconv under the name of spconv, for programs whose files stay as they are."""

from __future__ import annotations

from functools import partial

from ..installing import Installed, install_as, is_installed
from . import utils
from .absent import MODULES
from .version import VERSIONS, is_old, set_interface

__all__ = ["Installed", "install"]


def install(version: str = "2.3") -> Installed:
    """Have ``import spconv``, and all its modules, find those of layoutconv.

    ``version`` is as of :func:`set_interface`. For "1.2" layers are in ``spconv`` itself, and there
    is no ``spconv.pytorch``.

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
    old = is_old(version)
    if is_installed("spconv"):
        return install_as("spconv", "")
    package = __name__.rpartition(".")[0]
    ours, elsewhere = (f"{package}.pytorch", {"utils": utils}) if old else (package, {})
    made = install_as("spconv", ours, MODULES, elsewhere, partial(set_interface, VERSIONS[0]))
    set_interface(version)
    return made
