"""A dict whose entries are attributes as well."""

from __future__ import annotations

from typing import Any


class Attributes(dict[str, Any]):
    """A dict whose entries are attributes as well.

    >>> found = Attributes(width=3)
    >>> found.height = 4
    >>> found.width, found
    (3, {'width': 3, 'height': 4})
    """

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(name) from None

    def __setattr__(self, name: str, value: Any) -> None:
        self[name] = value
