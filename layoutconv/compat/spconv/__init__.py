"""The interface of spconv 2.3: the same names, arguments and contracts, computed by layoutconv.

``import layoutconv.compat.spconv.pytorch as spconv`` in place of ``import spconv.pytorch as
spconv`` is all that changes, or :func:`install` in a program whose files stay as they are;
docs/coming_from_spconv.md says what is the same and what is not.

>>> import layoutconv.compat.spconv as spconv
>>> float(spconv.__version__[2:]) >= 2.2
True
>>> spconv.constants.SPCONV_USE_DIRECT_TABLE
True
"""

from __future__ import annotations

from . import constants
from .absent import explain
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

__getattr__ = explain(__name__)
