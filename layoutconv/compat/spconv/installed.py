"""Install layoutconv under the name of spconv, for unchanged programs."""

from __future__ import annotations

from functools import partial

from ..installing import Installed, install_as, is_installed
from . import utils
from .absent import MODULES
from .version import VERSIONS, is_old, set_interface

__all__ = ["Installed", "install"]


def install(version: str = "2.3") -> Installed:
    """Let ``import spconv``, and imports of its modules, find those of layoutconv.

    ``version`` is as for :func:`set_interface`. For "1.2" layers are in ``spconv`` itself, and
    there is no ``spconv.pytorch``.

    Call it before anything imports spconv, for example in ``sitecustomize`` or first in a program:
    then installed frameworks run unchanged. It leaves another installed spconv alone, but
    ``import`` does not find it. A second call changes nothing.

    Returns a handle whose ``undo()`` uninstalls it; so does the end of a ``with``.

    Raises ``RuntimeError`` if another spconv was imported already: code that holds its classes
    would not know ours.

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
