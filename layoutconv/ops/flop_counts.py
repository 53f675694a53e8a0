"""FLOPs of convolutions over kernel maps, as ``torch.utils.flop_counter.FlopCounterMode`` asks."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from torch.utils.flop_counter import register_flop_formula

from .guard import PLAIN

if TYPE_CHECKING:
    from torch import Tensor


def pairs_in(index: Tensor) -> int:
    """Return the number of pairs of rows in an index (outputs, taps), where -1 is none.

    Waits for the device. Of an index without data, of a tracer or on ``meta``, all count.

    >>> import torch
    >>> index = torch.tensor([[0, 1], [-1, 2]], dtype=torch.int32)
    >>> pairs_in(index), pairs_in(index.to("meta"))
    (3, 4)
    """
    if type(index) not in PLAIN or index.is_meta:
        return index.numel()
    return int((index >= 0).sum())


def count_products(operator: Any, products: Callable[[Any, Tensor], int]) -> None:
    """Count two FLOPs for each product of an operator, whose third argument is a map's index.

    ``products`` returns how many there are for each pair of rows, from arguments and result.
    """

    def flops(*args: Any, out_val: Tensor, **_: Any) -> int:
        return 2 * pairs_in(args[2]) * products(args, out_val)

    register_flop_formula(operator.overloadpacket, get_raw=True)(flops)
