"""Networks of ``lc.nn`` train in two processes as in one."""

from __future__ import annotations

from . import graphed_checks
from .parallel_checks import CHECKS
from .ranks import together


def test_training_in_parallel_is_training(tmp_path):
    assert together(2, CHECKS, tmp_path) == {}


def test_graphs_in_parallel_are_no_other_training(tmp_path):
    assert together(2, graphed_checks.CHECKS, tmp_path) == {}
