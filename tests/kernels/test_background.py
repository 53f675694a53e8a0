"""Kernels compiled in the background: they cost the program little, and never end it."""

from __future__ import annotations

import threading
from collections.abc import Hashable
from pathlib import Path

import pytest

from layoutconv.kernels.compile.background import are_at_hand


def test_kernels_that_are_not_there_are_looked_for_once_in_a_while(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who has no compiler, or no folder, would look at every cloud."""
    monkeypatch.setenv("LAYOUTCONV_CACHE_DIR", str(tmp_path))
    tmp_path.chmod(0o777)
    looked: list[Hashable] = []

    def is_there(key: Hashable) -> bool:
        looked.append(key)
        return False

    kernels = [(("beside", number), dict) for number in range(2)]
    with pytest.warns(UserWarning, match="others may write"):
        found = [are_at_hand(kernels, is_there) for _ in range(10)]
    assert found == [False] * 10
    assert looked == [("beside", 0), ("beside", 1)]


def test_a_system_without_a_thread_to_spare_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("cutlass")
    monkeypatch.setenv("LAYOUTCONV_CACHE_DIR", str(tmp_path / "kernels"))
    before = threading.stack_size(1 << 46)  # more than there is
    try:
        with pytest.raises(RuntimeError, match="thread"):
            threading.Thread(target=dict).start()
        assert not are_at_hand([(("beside", "alone"), dict)], lambda key: False)
    finally:
        threading.stack_size(before)
