"""Classes made at run time, which copies and pickles can restore."""

from __future__ import annotations

from collections.abc import Callable
from types import new_class
from typing import Any


def subclass(
    kind: Any, bases: tuple[Any, ...], new: Callable[..., Any], methods: dict[str, Any]
) -> Any:
    """Make a class with the name of ``kind``.

    ``new(kind, ...)``, which pickle finds by name, makes an object of it without its state.

    >>> made = subclass(list, (list,), list.__new__, {"first": lambda self: self[0]})
    >>> made.__name__, made([3]).first()
    ('list', 3)
    """

    def reduce(self: Any, protocol: Any) -> Any:
        # Pickle cannot import the class itself.
        _, (_, *arguments), *rest = super(made, self).__reduce_ex__(max(2, protocol))
        return new, (kind, *arguments), *rest

    names = {"__module__": __name__, "__qualname__": kind.__qualname__, "__doc__": kind.__doc__}
    names.update(methods, __reduce_ex__=reduce)
    made: Any = new_class(kind.__name__, bases, exec_body=lambda body: body.update(names))
    return made
