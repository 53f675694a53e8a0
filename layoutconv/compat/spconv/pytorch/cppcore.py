"""``spconv.pytorch.cppcore``: there to be imported. spconv hands tensors to cumm here."""

from __future__ import annotations

from ..absent import explain

__getattr__ = explain(__name__)
