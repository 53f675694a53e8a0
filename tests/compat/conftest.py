"""spconv's settings, which its users assign."""

from __future__ import annotations

from collections.abc import Iterator
from types import ModuleType

import pytest

from layoutconv.compat.spconv import constants as settings


@pytest.fixture
def constants() -> Iterator[ModuleType]:
    """Settings to assign; afterwards they are what they were."""
    before = dict(vars(settings))
    yield settings
    vars(settings).update(before)
