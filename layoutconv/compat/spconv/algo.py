"""``spconv.algo``: exists to be imported. spconv tunes its kernels here; see :mod:`.absent`."""

from __future__ import annotations

from .absent import explain

__getattr__ = explain(__name__)
