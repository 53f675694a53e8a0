"""``Agreement``: ranks of a group compare a call before they exchange anything for it.

If ranks disagree about a collective, it hangs, ends the process, or silently sums unrelated
tensors. So the ranks of each call of this package meet first: a rank sends 32 bytes to every other,
from host to host, without waiting for the GPU's stream. They hold whether the rank can go on, and
the hash of everything that must be the same. Only if these differ do ranks send the details, and
all of them raise the same error.

The meeting is part of every call, also of warm ones. Otherwise a rank with new arguments would meet
alone, while a rank with known arguments waits for a halo.
"""

from __future__ import annotations

import json
from hashlib import blake2b
from types import TracebackType
from typing import Any
from weakref import WeakKeyDictionary

import torch
import torch.distributed as dist

from ..errors import ArgumentError, ArgumentTypeError, RankError
from .group import is_alone, place_in

_GOES_ON, _FAILED = 0, 1
_LONGEST = 4000  # characters of an error that are sent to other ranks
_RAISED = {error.__name__: error for error in (ArgumentError, ArgumentTypeError)}

# Per group that has met: a group of the same ranks that takes CPU tensors, None if the group itself
# does; and the number of its agreements.
_cpu_groups: WeakKeyDictionary[Any, Any] = WeakKeyDictionary()
_agreed: WeakKeyDictionary[Any, int] = WeakKeyDictionary()


class Agreement:
    """A meeting of all ranks of a group, at the end of a ``with`` block.

    In the block a rank checks its arguments, and sets ``terms``: by argument name, a text that must
    be the same on all ranks. A rank whose block raises takes part, too: its error propagates, and
    the other ranks raise it as well. Ranks in different calls raise an error that says so.

    Args:
        call: the name of the call.
        group: a process group; None is the group of all processes. A group of one does not meet.
        expected: by the names of terms, what errors expect, if not "the same on every rank".

    Attributes:
        wish: set in the block; after it, true if any rank has set it.
        label: after the block, the call and its number in the group, for the backward pass.

    Raises :class:`~layoutconv.errors.ArgumentError` for a term that differs, and the error that
    another rank's block raised; :class:`~layoutconv.errors.RankError` for ranks in different calls,
    and for a rank that has ended.

    >>> with Agreement("conv3d", None) as same:
    ...     same.terms["stride"] = 2
    """

    def __init__(self, call: str, group: Any, expected: dict[str, str] | None = None) -> None:
        self.call, self.group = call, group
        self.rank, self.size = place_in(group)
        self.expected = expected
        self.terms: dict[str, object] = {}
        self.wish = False
        self.label = call

    @classmethod
    def of(cls, call: str, owner: Any, kind: type) -> Agreement:
        """Return the meeting of the ranks that a slab or a cloud belongs to.

        If ``owner`` is not of that type, the block will raise. Then this rank meets all processes
        if theirs is the only group; else it raises alone.
        """
        if isinstance(owner, kind):
            return cls(call, owner.group)  # type: ignore[attr-defined]
        made = cls(call, None)
        made.size = made.size if is_alone() else 1
        return made

    def __enter__(self) -> Agreement:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        # An interrupted rank does not meet: the others see its process end.
        if self.size > 1 and (error is None or isinstance(error, Exception)):
            self._meet(error)

    def _meet(self, error: Exception | None) -> None:
        told = json.dumps(
            {
                "call": self.call,
                "terms": {name: str(value) for name, value in self.terms.items()},
                "error": None if error is None else _parts(error),
            }
        ).encode()
        state = _GOES_ON if error is None else _FAILED
        mine = [_digest(told), state, int(self.wish), len(told)]
        group = _cpu_group(self.group)
        try:
            rows = torch.tensor([mine] * self.size, device="cpu")  # whatever the default device is
            every = self._swap(group, rows, None).tolist()
            if all(row[:2] == mine[:2] for row in every) and state == _GOES_ON:
                self.wish = any(row[2] for row in every)
                met = dist.group.WORLD if self.group is None else self.group
                number = _agreed[met] = _agreed.get(met, 0) + 1
                self.label = f"{self.call}, call {number} of the group"
                return
            sent = torch.frombuffer(bytearray(told * self.size), dtype=torch.uint8)
            lengths = [row[3] for row in every]
            texts = self._swap(group, sent, lengths).split(lengths)
        except RuntimeError as lost:
            if error is None:
                raise RankError(
                    f"{self.call}: another rank of the group has ended, or did not join this "
                    f"call: {lost}"
                ) from lost
            return
        if error is None:
            tell([json.loads(text.numpy().tobytes()) for text in texts], self.expected)

    def _swap(self, group: Any, sent: Any, lengths: list[int] | None) -> Any:
        """Return the data that each rank sends here: equal parts, or parts of ``lengths``."""
        if lengths is None:
            received = torch.empty_like(sent)
            dist.all_to_all_single(received, sent, group=group)
        else:
            received = sent.new_empty(sum(lengths))
            equal = [len(sent) // self.size] * self.size
            dist.all_to_all_single(received, sent, lengths, equal, group=group)
        return received


def tell(every: list[dict[str, Any]], expected: dict[str, str] | None = None) -> None:
    """Raise the error that the ranks' messages call for, the same on all ranks.

    Args:
        every: of each rank its "call", its "terms" by name, and its "error": None, or the name of
            the class and its arguments.
        expected: by the names of terms, what errors expect, if not "the same on every rank".
    """
    for rank, one in enumerate(every):
        if one["error"] is not None:
            kind, *parts = one["error"]
            if kind in _RAISED:
                name, wanted, got = parts
                raise _RAISED[kind](name, wanted, f"{got} on rank {rank}")
            raise RankError(f"{one['call']}: rank {rank} raised {kind}: {parts[0]}")
    calls = [one["call"] for one in every]
    if len({*calls}) > 1:
        raise RankError(f"ranks of a group are in different calls: {_listed(calls)}")
    for name in every[0]["terms"]:
        values = [one["terms"].get(name, "nothing") for one in every]
        if len({*values}) > 1:
            wanted = (expected or {}).get(name, "the same on every rank")
            raise ArgumentError(name, wanted, _listed(values))
    raise RankError(f"{calls[0]}: ranks passed different sets of arguments")


def tensor_term(tensor: Any, split: int | None = None) -> str:
    """Return a tensor as a term: everything that must be the same, except a mode that is split.

    >>> tensor_term(torch.ones(1, 8, 5, requires_grad=True), split=2)
    '(1, 8, *) float32 on cpu with a gradient'
    """
    if tensor is None:
        return "None"
    extents = ["*" if axis == split else str(extent) for axis, extent in enumerate(tensor.shape)]
    wanted = " with a gradient" * (tensor.requires_grad and torch.is_grad_enabled())
    kind = str(tensor.dtype).removeprefix("torch.")
    return f"({', '.join(extents)}) {kind} on {tensor.device.type}{wanted}"


def _parts(error: Exception) -> list[str]:
    """Return an error's class name and arguments, so that other ranks can make it again."""
    name = type(error).__name__
    if isinstance(error, ArgumentError) and name in _RAISED:
        return [name, error.name, error.expected, _said(error.got)]
    return [name, _said(error)]


def _said(value: Any) -> str:
    """Return a value as text of bounded length; it must not raise, as the other ranks wait."""
    try:
        text = str(value)
    except Exception:
        text = f"a {type(value).__name__} that does not say what it is"
    return text if len(text) <= _LONGEST else text[: _LONGEST - 3] + "..."


def _digest(told: bytes) -> int:
    return int.from_bytes(blake2b(told, digest_size=8).digest(), "little", signed=True)


def _listed(values: list[str]) -> str:
    """Return the values as text, each with its ranks."""
    found: dict[str, list[str]] = {}
    for rank, value in enumerate(values):
        found.setdefault(value, []).append(str(rank))
    return ", ".join(
        f"{value} on rank{'s' * (len(ranks) > 1)} {' and '.join(ranks)}"
        for value, ranks in found.items()
    )


def _cpu_group(group: Any) -> Any:
    """Return a group of the same ranks with a CPU backend: itself if it has one."""
    group = dist.group.WORLD if group is None else group
    if group not in _cpu_groups:
        beside = None
        if "cpu:" not in dist.get_backend_config(group):
            ranks = dist.get_process_group_ranks(group)
            beside = dist.new_group(ranks, backend="gloo", use_local_synchronization=True)
        _cpu_groups[group] = beside
    return _cpu_groups[group] or group
