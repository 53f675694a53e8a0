"""A figure printed where box-drawing characters cannot be written."""

from __future__ import annotations

import io
import sys

import layoutconv as lc


def test_a_figure_prints_in_ascii_where_the_output_has_no_more(monkeypatch):
    written = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(written, encoding="ascii"))
    figure = lc.Layout((2, 2)).draw()
    print(figure)
    sys.stdout.flush()
    text = written.getvalue().decode("ascii")
    assert "| 0  2 |" in text
    assert "?" not in text


def test_a_figure_prints_in_boxes_where_they_can_be_written(monkeypatch):
    written = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(written, encoding="utf-8"))
    print(lc.Layout((2, 2)).draw())
    sys.stdout.flush()
    assert "│ 0  2 │" in written.getvalue().decode("utf-8")
