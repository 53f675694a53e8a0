"""A volume or a cloud that is split over three processes is that of one."""

from __future__ import annotations

from . import cloud_checks, split_checks
from .ranks import together


def test_a_split_convolution_is_the_whole_one(tmp_path):
    assert together(3, split_checks.CHECKS | cloud_checks.CHECKS, tmp_path) == {}
