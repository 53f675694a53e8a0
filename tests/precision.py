"""torch's settings of how float32 is multiplied, to change and to put back."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

NEW = hasattr(getattr(torch.backends.cudnn, "conv", None), "fp32_precision")
PLACES: dict[str, Any] = {"generic": torch.backends, "cudnn": torch.backends.cudnn}
if NEW:
    PLACES["conv"] = torch.backends.cudnn.conv  # last: it inherits from the others


@contextmanager
def restored() -> Iterator[None]:
    """A context after which both APIs say what they said before."""
    allowed = torch.backends.cudnn.allow_tf32
    before = {name: getattr(place, "fp32_precision", None) for name, place in PLACES.items()}
    try:
        yield
    finally:
        torch.backends.cudnn.allow_tf32 = allowed
        if NEW:
            for name, place in PLACES.items():
                place.fp32_precision = before[name]


def decides(generic: str, cudnn: str, conv: str) -> bool:
    """Set all three; return whether convolutions may take tf32, by the rules that torch documents.

    The most special setting that is not "none" decides; one that a GPU does not have is "none".
    """
    settings = {"generic": generic, "cudnn": cudnn, "conv": conv}
    for name, place in PLACES.items():
        place.fp32_precision = settings[name]
    return next((s for s in (conv, cudnn, generic) if s != "none"), "none") == "tf32"
