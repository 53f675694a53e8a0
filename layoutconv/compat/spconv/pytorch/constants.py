"""The settings of :mod:`layoutconv.compat.spconv.constants`, the same module."""

import sys

from .. import constants

# One module by two names, so that a setting through either has effect.
sys.modules[__name__] = constants
