"""``spconv.cppconstants``: build flags, as of a spconv wheel without C++."""

from __future__ import annotations

from .absent import explain

CPU_ONLY_BUILD = False  # layers run on a GPU if there is one
HAS_BOOST = False

__getattr__ = explain(__name__)
