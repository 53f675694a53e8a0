"""The view by hand: the example compares its results itself; here, what it shows."""

from __future__ import annotations


def test_it_shows_the_past_and_nothing_of_the_future(example, capsys):
    example("hello_views").main([])
    lines = [line.split(":") for line in capsys.readouterr().out.splitlines() if " w = " in line]
    assert len(lines) == 9
    for w, (_, cells) in enumerate(lines):
        assert cells.split() == [str(past) if past >= 0 else "." for past in (w - 4, w - 2, w)]
