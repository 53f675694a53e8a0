"""The precision of float32: torch's setting, by its new API, its old one, and both in turn."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from layoutconv.compat.spconv import constants
from layoutconv.gpu.fp32_precision import multiplied_as, multiplied_now, reader_of

from ..precision import NEW, decides, restored

CUDNN = torch.backends.cudnn
SETTINGS = list(product(("none", "ieee", "tf32", "bf16"), *[("none", "ieee", "tf32")] * 2))
new_api = pytest.mark.skipif(not NEW, reason="this torch has allow_tf32 alone")


@pytest.fixture(autouse=True)
def put_back() -> Iterator[None]:
    with restored():
        yield


def answers() -> set[Any]:
    """The settings as each part of the package sees them."""
    of_spconv = constants.SPCONV_ALLOW_TF32  # type: ignore[attr-defined]
    return {multiplied_now() == "tf32", of_spconv, multiplied_as(torch.float32) == "tf32"}


@new_api
def test_the_most_special_setting_decides():
    for settings in SETTINGS:
        expected = decides(*settings)
        assert answers() == {expected}, settings


@new_api
def test_allow_tf32_decides_where_it_was_set_last():
    """Whatever the new API said before; and the new one, set after it, decides again."""
    for settings in SETTINGS:
        decides(*settings)
        CUDNN.allow_tf32 = True
        assert answers() == {True}, settings
    for special in ("ieee", "tf32"):
        CUDNN.allow_tf32 = special == "ieee"
        CUDNN.conv.fp32_precision = special
        assert answers() == {special == "tf32"}


def test_allow_tf32_alone():
    for allowed in (True, False, True):
        CUDNN.allow_tf32 = allowed
        assert answers() == {allowed}


@pytest.mark.parametrize("private", [False, True])
def test_a_torch_without_the_new_api(private):
    """As 2.8: no ``conv`` in its settings; with and without the function that they call."""
    state = SimpleNamespace(allow_tf32=True)
    functions = {"_get_cudnn_allow_tf32": lambda: state.allow_tf32} if private else {}
    old = SimpleNamespace(
        _C=SimpleNamespace(**functions), backends=SimpleNamespace(cudnn=state)
    )  # fmt: skip
    multiplied = reader_of(old)
    for state.allow_tf32 in (True, False):
        assert multiplied() == ("tf32" if state.allow_tf32 else "fp32")


@new_api
def test_a_torch_whose_private_functions_are_gone():
    class Silent:
        """Settings whose old API raises, as it does where the new one was used."""

        @property
        def allow_tf32(self) -> bool:
            raise RuntimeError("the new API was used")

        conv = CUDNN.conv

    future = SimpleNamespace(_C=SimpleNamespace(), backends=SimpleNamespace(cudnn=Silent()))
    multiplied = reader_of(future)
    for settings in SETTINGS:
        expected = decides(*settings)
        assert multiplied() == ("tf32" if expected else "fp32")


@pytest.mark.parametrize("dtype", [torch.float16, torch.float64, torch.int8])
def test_other_numbers_are_not_asked_for(dtype):
    assert multiplied_as(dtype) is None
    assert multiplied_as(torch.float32, "fp32") == "fp32"
