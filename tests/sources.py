"""Statements of sources, without expressions: nine in ten of the nodes that `ast.walk` visits."""

from __future__ import annotations

import ast
from collections.abc import Iterator


def statements(tree: ast.AST) -> Iterator[ast.AST]:
    """Yield a module and its statements, however deep; expressions hold none."""
    waiting = [tree]
    while waiting:
        node = waiting.pop()
        yield node
        waiting += below(node)


def below(node: ast.AST) -> Iterator[ast.AST]:
    """Yield the statements of a statement's bodies, one level down."""
    for field in ("body", "orelse", "handlers", "finalbody", "cases"):
        yield from getattr(node, field, ())
