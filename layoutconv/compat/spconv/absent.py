"""Names of spconv that are not there, and the sentence that says so."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NoReturn


def explain(module: str, absent: Mapping[str, str]) -> Callable[[str], NoReturn]:
    """A ``__getattr__`` for ``module`` that says what stands in for a name of ``absent``.

    >>> explain("layoutconv.compat.spconv.utils", {"rbbox_iou": "boxes are another package's"})(
    ...     "rbbox_iou"
    ... )
    Traceback (most recent call last):
    AttributeError: layoutconv.compat.spconv.utils has no 'rbbox_iou': boxes are another package's
    """

    def getattribute(name: str) -> NoReturn:
        if name in absent:
            raise AttributeError(f"{module} has no {name!r}: {absent[name]}")
        raise AttributeError(f"module {module!r} has no attribute {name!r}")

    return getattribute
