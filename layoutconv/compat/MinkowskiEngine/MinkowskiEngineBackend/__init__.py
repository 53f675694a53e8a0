"""MinkowskiEngine's compiled module, as far as programs import it: its enumerations and keys."""

from . import _C

__all__ = ["_C"]
