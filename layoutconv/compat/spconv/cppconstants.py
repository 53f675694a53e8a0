"""``spconv.cppconstants``: how a spconv was built that is a wheel without C++."""

from __future__ import annotations

from .absent import explain

CPU_ONLY_BUILD = False  # layers run on a GPU where there is one
HAS_BOOST = False

__getattr__ = explain(__name__)
