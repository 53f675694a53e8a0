"""The interface of spconv 2.3: the same names, arguments and contracts, computed by layoutconv.

Replace ``import spconv.pytorch as spconv`` by ``import layoutconv.compat.spconv.pytorch as
spconv``, or call :func:`install` to leave the program's files unchanged; docs/coming_from_spconv.md
lists what is the same and what is not.

>>> import layoutconv.compat.spconv as spconv
>>> float(spconv.__version__[2:]) >= 2.2
True
>>> spconv.constants.SPCONV_USE_DIRECT_TABLE
True
"""

from __future__ import annotations

from . import constants
from .absent import MOVED, REASONS, explain
from .core import AlgoHint, ConvAlgo
from .installed import install
from .version import set_interface

__version__ = "2.3.8"  # of the interface
SPCONV_VERSION_NUMBERS = [2, 3, 8]

__all__ = [
    "SPCONV_VERSION_NUMBERS",
    "AlgoHint",
    "ConvAlgo",
    "__version__",
    "constants",
    "install",
    "set_interface",
]

__getattr__ = explain(__name__, REASONS | MOVED)
