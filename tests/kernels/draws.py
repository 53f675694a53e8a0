"""Numbers of examples of laws whose kernels are compiled, or run in the machine."""

from __future__ import annotations

import os

_ASKED_FOR = int(os.environ.get("LAYOUTCONV_CAMPAIGN", "0"))


def draws(usually: int) -> int:
    """As many as LAYOUTCONV_CAMPAIGN says; without it, as many as there is time for in a merge."""
    return _ASKED_FOR or usually
