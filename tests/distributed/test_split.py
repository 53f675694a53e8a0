"""A volume split over three processes is that of one."""

from __future__ import annotations

from .ranks import together
from .split_checks import CHECKS


def test_a_split_convolution_is_the_whole_one(tmp_path):
    assert together(3, CHECKS, tmp_path) == {}
