"""Settings and versions of other libraries' interfaces, which users assign."""

from __future__ import annotations

from collections.abc import Iterator
from types import ModuleType

import pytest

from layoutconv.compat import torchsparse
from layoutconv.compat.spconv import constants as settings


@pytest.fixture
def constants() -> Iterator[ModuleType]:
    """Settings to assign; afterwards they are what they were."""
    before = dict(vars(settings))
    yield settings
    vars(settings).update(before)


@pytest.fixture(params=["2.1", "1.4"])
def version(request: pytest.FixtureRequest) -> Iterator[str]:
    """Versions of TorchSparse's interface; afterwards it is the newer one."""
    torchsparse.set_interface(request.param)
    yield request.param
    torchsparse.set_interface("2.1")
