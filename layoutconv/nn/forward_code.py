"""Forward passes as source code: classes are made from it, and pickles keep it."""

from __future__ import annotations

import operator
from collections.abc import Callable
from importlib import import_module
from types import ModuleType
from typing import Any, NamedTuple

from torch.fx import Graph

from ..base.caches import remembered


class UnknownPass(BaseException):
    """The forward pass of a module cannot be analysed; the message says why."""


class Code(NamedTuple):
    """A forward pass: the source of ``forward(self, ...)``, and the objects that it names.

    Attributes:
        names: for each object its name in the source, its module and its name there ("": the
            module).
    """

    source: str
    names: tuple[tuple[str, str, str], ...]


@remembered(256)
def compiled(code: Code) -> Callable[..., Any]:
    """Compile a forward pass into a function.

    >>> code = Code("def forward(self, x): return sqrt(x)", (("sqrt", "math", "sqrt"),))
    >>> compiled(code)(None, 4)
    2.0
    """
    names = {name: found(*place) for name, *place in code.names}
    exec(compile(code.source, "<forward pass with fused norms>", "exec"), names)
    function: Callable[..., Any] = names["forward"]
    return function


def found(module: str, name: str) -> Any:
    """Return the object of a name in a module.

    >>> found("operator", ""), found("torch", "nn.ReLU")  # doctest: +ELLIPSIS
    (<module 'operator' ...>, <class 'torch.nn.modules.activation.ReLU'>)
    """
    where = import_module(module)
    return operator.attrgetter(name)(where) if name else where


def code_of(graph: Graph) -> Code:
    """Return the code of a graph.

    Raises :class:`UnknownPass` if it uses an object that cannot be imported.

    >>> graph = Graph()
    >>> _ = graph.output(graph.call_function(operator.neg, (graph.placeholder("x"),)))
    >>> compiled(code_of(graph))(None, 4)
    -4
    """
    graph.lint()
    made = graph.python_code("self")
    names = []
    for name, value in made.globals.items():
        if isinstance(value, ModuleType):
            names.append((name, value.__name__, ""))
            continue
        place = getattr(value, "__module__", None), getattr(value, "__qualname__", None)
        try:
            same = found(*place) is value  # type: ignore[arg-type]
        except Exception:
            same = False
        if same:
            names.append((name, *place))  # type: ignore[arg-type]
        elif name in _words(made.src):
            raise UnknownPass(
                f"its forward pass calls `{name}`, which has no place to import it from"
            )
    return Code(made.src, tuple(names))


def _words(source: str) -> set[str]:
    """Return the names in a source."""
    words = "".join(c if c.isalnum() or c == "_" else " " for c in source)
    return set(words.split())
