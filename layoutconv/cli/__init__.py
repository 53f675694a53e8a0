"""The command line: ``python -m layoutconv COMMAND``, or ``layoutconv COMMAND`` once installed.

One file per command; ``app`` collects them and turns errors into messages, ``text_table`` prints
tables. ``import layoutconv`` loads none of it, and a command imports its needs when it runs, so
that ``--help`` and tab completion are fast.
"""

from __future__ import annotations

from .app import main

__all__ = ["main"]
