"""Text pictures for outputs that cannot write box-drawing characters."""

from __future__ import annotations

import sys

_ASCII = str.maketrans("─│┌┐└┘├┤┬┴┼═║╞╡╥╨╫╪╬⋯⋮⋱·", "-|" + "+" * 9 + "=|" + "+" * 7 + ".:..")


def to_ascii(text: str) -> str:
    """Replace the box-drawing characters of a text, for terminals without them.

    >>> to_ascii("│ 4 │ ⋯")
    '| 4 | .'
    """
    return text.translate(_ASCII).encode("ascii", "replace").decode()


def printable(text: str) -> str:
    """Return ``text``, in ASCII if standard output cannot write it.

    >>> printable("| 4 |")
    '| 4 |'
    """
    try:
        text.encode(getattr(sys.stdout, "encoding", None) or "utf-8")
    except UnicodeEncodeError:
        return to_ascii(text)
    return text
