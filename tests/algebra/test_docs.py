"""Every example of the pages on the algebra is executed."""

from __future__ import annotations

import doctest
from pathlib import Path

import pytest

PAGES = sorted((Path(__file__).parents[2] / "docs" / "algebra").glob("*.md"))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_examples_of_a_page(page):
    failed, tried = doctest.testfile(str(page), module_relative=False)
    assert tried > 5
    assert not failed
