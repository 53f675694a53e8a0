"""The command line: ``python -m layoutconv COMMAND``, or ``layoutconv COMMAND`` once installed.

A file for each command; ``app`` puts them together and turns errors into sentences, ``table`` has
what they print with. ``import layoutconv`` loads none of it, and a command loads what it needs when
it runs, so that ``--help`` and tab completion take a moment.
"""

from __future__ import annotations

from .app import main

__all__ = ["main"]
