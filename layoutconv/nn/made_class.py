"""Classes that are made while a program runs, and that copies and pickles find again."""

from __future__ import annotations

from collections.abc import Callable
from types import new_class
from typing import Any


def subclass(
    kind: Any, bases: tuple[Any, ...], new: Callable[..., Any], methods: dict[str, Any]
) -> Any:
    """A class with the name of ``kind``.

    ``new(kind, ...)``, which pickle finds by its name, makes an object of it without its state.

    >>> made = subclass(list, (list,), list.__new__, {"first": lambda self: self[0]})
    >>> made.__name__, made([3]).first()
    ('list', 3)
    """

    def reduce(self: Any, protocol: Any) -> Any:
        # The class has no place that pickle could import it from.
        _, (_, *arguments), *rest = super(made, self).__reduce_ex__(max(2, protocol))
        return new, (kind, *arguments), *rest

    names = {"__module__": __name__, "__qualname__": kind.__qualname__, "__doc__": kind.__doc__}
    names.update(methods, __reduce_ex__=reduce)
    made: Any = new_class(kind.__name__, bases, exec_body=lambda body: body.update(names))
    return made
