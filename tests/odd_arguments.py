"""Odd arguments of functions, one at a time: an answer, or an error that names one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch

from layoutconv.errors import ArgumentError

ODD = (
    *(None, "x", "", 3, -1, 2.5, True, float("nan"), 1 << 70, [], (), [3], [None], ["a"], {}),
    *({"a": 1}, {1, 2}, object(), int, b"ab", range(3), (-1, 2), (2, "a"), [[1, 2], [3]]),
    *((2**40, 3, 4), (2**40, 3, 5), [(2**40, 3, 4)]),
    *(
        np.ones(3),
        np.zeros((0, 3)),
        np.array(3),
        np.array(3.0),
        np.array(["a"]),
        np.array([-5, 7, 9]),
    ),
    *(np.ones((2, 3), np.complex64), np.ones((2, 2, 2), np.complex64)),
    *(torch.tensor(3), torch.ones(2), torch.ones(7), torch.zeros(0, 4), torch.ones(2, 4).bool()),
    *(torch.full((2, 3), float("nan")), torch.full((2, 5), float("nan"))),
    *(torch.full((2, 4), 2**40), torch.ones(2, 3, dtype=torch.complex64)),
)


def refusals(function: Callable[..., Any], given: Mapping[str, Any]) -> list[ArgumentError]:
    """The errors of a function that takes ``given``, with each argument an odd one in turn.

    Any other exception is raised: Python's, NumPy's, torch's.
    """
    function(**given)
    errors = []
    for name in given:
        for odd in ODD:
            try:
                function(**{**given, name: odd})
            except ArgumentError as error:
                errors.append(error)
    assert len(errors) > len(ODD) / 2
    return errors
