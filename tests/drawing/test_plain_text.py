"""A figure printed where box-drawing characters cannot be written."""

from __future__ import annotations

import io
from contextlib import redirect_stdout

import layoutconv as lc


def printed(encoding):
    """The text of a printed figure, on an output of an encoding."""
    written = io.BytesIO()
    with redirect_stdout(io.TextIOWrapper(written, encoding=encoding)) as out:
        print(lc.Layout((2, 2)).draw())
        out.flush()
        return written.getvalue().decode(encoding)


def test_a_figure_prints_in_ascii_where_the_output_has_no_more():
    text = printed("ascii")
    assert "| 0  2 |" in text
    assert "?" not in text


def test_a_figure_prints_in_boxes_where_they_can_be_written():
    assert "│ 0  2 │" in printed("utf-8")
