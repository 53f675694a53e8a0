"""The settings of :mod:`layoutconv.compat.spconv.constants`, the same module."""

import sys

from .. import constants

# One module by two names: what is set through either is read.
sys.modules[__name__] = constants
