"""Pictures in text where box-drawing characters cannot be written."""

from __future__ import annotations

import sys

_ASCII = str.maketrans("─│┌┐└┘├┤┬┴┼═║╞╡╥╨╫╪╬⋯⋮⋱·", "-|" + "+" * 9 + "=|" + "+" * 7 + ".:..")


def to_ascii(text: str) -> str:
    """A text without box-drawing characters, for terminals that have none.

    >>> to_ascii("│ 4 │ ⋯")
    '| 4 | .'
    """
    return text.translate(_ASCII).encode("ascii", "replace").decode()


def printable(text: str) -> str:
    """``text``, in ASCII where standard output cannot write it.

    >>> printable("| 4 |")
    '| 4 |'
    """
    try:
        text.encode(getattr(sys.stdout, "encoding", None) or "utf-8")
    except UnicodeEncodeError:
        return to_ascii(text)
    return text
