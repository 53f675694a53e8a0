"""Exchange of feature rows between ranks, and of their gradients on the way back."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from ..errors import ArgumentError
from .agreement import Agreement, tensor_term
from .group import place_in


class Route(NamedTuple):
    """The rows of a rank's tensor that go to each rank, and the number that come from each."""

    rows: Tensor  # int64: to rank 0, then to rank 1, ...; no row twice to the same rank
    send: list[int]  # number of rows to each rank
    receive: list[int]
    group: Any


def all_to_all(
    sent: Tensor, send: list[int], receive: list[int], group: Any, wait: bool = True
) -> tuple[Tensor, Any]:
    """Return rows from all ranks, in rank order, and the work to wait for, None if ``wait``."""
    if place_in(group)[1] == 1:
        return sent, None
    sent = sent.contiguous()
    got = sent.new_empty((sum(receive), *sent.shape[1:]))
    width = sent[:1].numel() if len(sent) else got[:1].numel()
    of, to = ([count * width * sent.element_size() for count in side] for side in (receive, send))
    # Sent as bytes, which every backend supports.
    flat = got.view(-1).view(torch.uint8), sent.view(-1).view(torch.uint8)
    work = dist.all_to_all_single(*flat, of, to, group, not wait)
    return got, work


def counts_from(counts: list[int], device: Any, group: Any) -> list[int]:
    """Return how many rows each rank sends here, given how many this rank sends to each."""
    mine = torch.tensor(counts, dtype=torch.int64, device=device)
    ones = [1] * len(counts)
    found: list[int] = all_to_all(mine, ones, ones, group)[0].tolist()
    return found


def carry(x: Tensor, route: Route, label: str = "carry") -> Tensor:
    """Return the rows (sum of ``receive``, C) that other ranks send here. Differentiable.

    ``label`` names this call when ranks meet to send gradients back.

    >>> carry(torch.tensor([[1.0], [2.0]]), Route(torch.tensor([1, 0]), [2], [2], None)).T
    tensor([[2., 1.]])
    """
    return arrive(*depart(x, route, label)[1:])


def depart(x: Tensor, route: Route, label: str) -> tuple[Tensor, Tensor, Trip]:
    """Send rows; return a tensor to compute with meanwhile, and the arguments of :func:`arrive`.

    In the backward pass, the gradients of the received rows are sent before the gradients of the
    overlapped computation are made, and are added to those on arrival.
    """
    trip = Trip(route, label)
    here, token = _Depart.apply(x, trip)
    return here, token, trip


def arrive(token: Tensor, trip: Trip) -> Tensor:
    """Return the rows that other ranks sent; on a GPU, later launches wait, not the host."""
    received: Tensor = _Arrive.apply(token, trip)
    return received


class Trip:
    """One use of a route: rows there, and gradients back."""

    def __init__(self, route: Route, label: str) -> None:
        self.route, self.label = route, label
        self.sent: Tensor | None = None  # must outlive the exchange
        self.got: Tensor | None = None
        self.work: Any = None

    def leave(self, sent: Tensor, back: bool = False) -> None:
        route = self.route
        sides = (route.receive, route.send) if back else (route.send, route.receive)
        self.sent = sent
        self.got, self.work = all_to_all(sent, *sides, route.group, wait=False)

    def come(self) -> Tensor:
        got = self.got
        assert got is not None
        if self.work is not None:
            self.work.wait()
        self.sent = self.got = self.work = None
        return got


class _Depart(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, trip: Trip) -> Any:
        ctx.trip = trip
        trip.leave(x.index_select(0, trip.route.rows))
        return x.view_as(x), x.new_empty(0)

    @staticmethod
    def backward(ctx: Any, grad: Tensor, token: Tensor) -> Any:  # type: ignore[override]
        route = ctx.trip.route
        back = ctx.trip.come()
        if len(route.rows):
            grad = grad.clone()
        # Rank by rank, so that a row's gradients are added in the same order every time.
        parts = zip(route.rows.split(route.send), back.split(route.send), strict=True)
        for rows, part in parts:
            if len(rows):
                grad.index_add_(0, rows, part)
        return grad, None


class _Arrive(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, token: Tensor, trip: Trip) -> Tensor:
        ctx.trip = trip
        return trip.come()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:  # type: ignore[override]
        with Agreement(f"backward of {ctx.trip.label}", ctx.trip.route.group) as same:
            if torch.is_grad_enabled():  # double backward is not supported
                expected = "False, as an exchange between ranks is differentiable only once"
                raise ArgumentError("create_graph", expected, True)
            same.terms["gradient"] = tensor_term(grad, split=0)
        ctx.trip.leave(grad.contiguous(), back=True)
        return grad.new_zeros(0), None


class SumOfRanks(torch.autograd.Function):
    """Return tensors, the same on every rank, whose gradients are sums over all ranks."""

    @staticmethod
    def forward(ctx: Any, group: Any, label: str, *tensors: Tensor) -> Any:
        ctx.group, ctx.label = group, label
        return tuple(tensor.view_as(tensor) for tensor in tensors)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:  # type: ignore[override]
        if place_in(ctx.group)[1] == 1:
            return None, None, *grads
        with Agreement(f"sums of {ctx.label}", ctx.group) as same:
            same.terms["gradients"] = [tensor_term(grad) for grad in grads]
        exact = [torch.promote_types(grad.dtype, torch.float32) for grad in grads]
        flat = torch.cat([grad.flatten().to(kind) for grad, kind in zip(grads, exact, strict=True)])
        dist.all_reduce(flat, group=ctx.group)
        parts = flat.split([grad.numel() for grad in grads])
        return (
            None,
            None,
            *(
                part.view(grad.shape).to(grad.dtype)
                for part, grad in zip(parts, grads, strict=True)
            ),
        )
