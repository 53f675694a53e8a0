"""Switches of TorchSparse. One has an effect, at every use:

``allow_tf32``
    ``torch.backends.cudnn.allow_tf32`` by another name, for reading and for writing.

The rest have none.
"""

from __future__ import annotations

import sys
from types import ModuleType

from .. import tf32

benchmark = False
allow_fp16 = True
hash_rsv_ratio = 2


def init() -> None:
    """Do nothing: there is nothing to initialize."""


class _Backends(ModuleType):
    """A module with one attribute that reads and writes a setting of torch."""

    @property
    def allow_tf32(self) -> bool:
        return tf32.is_allowed()

    @allow_tf32.setter
    def allow_tf32(self, allowed: bool) -> None:
        tf32.allow(allowed)


sys.modules[__name__].__class__ = _Backends
