"""``spconv.pytorch.cppcore``: exists to be imported. spconv passes tensors to cumm here."""

from __future__ import annotations

from ..absent import explain

__getattr__ = explain(__name__)
