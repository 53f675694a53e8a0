"""Ranks that disagree learn it, all of them, and none waits for another."""

from __future__ import annotations

from .mismatch_checks import CHECKS
from .ranks import together


def test_what_differs_is_one_error_on_every_rank(tmp_path):
    # The last check has rank 1 end without a word.
    assert together(3, CHECKS, tmp_path) == {"some rank": "2 of 3 ranks came to the end"}
