"""Residual block: layers with a shortcut around them."""

from __future__ import annotations

from typing import Any

import torch

from ..errors import ArgumentTypeError
from .containers import Sequential, apply, in_turn
from .fused_modules import with_following
from .fused_norm import ACTIVATIONS, NORMS, may_fuse, runs_only_forward
from .padded_norm import is_hooked
from .quantized_tensor import has_features
from .scripting import refuse_scripting
from .sparse_modules import SparseConvolution
from .trained_norm import trained_features


class Residual(torch.nn.Module):
    """``activation(body(x) + past(x))``: the block of residual networks.

    Args:
        body: layers that keep the cells of a sparse tensor, or the shape of a dense one.
        past: the shortcut; by default x itself. If channels change, a ``Sequential`` of
            ``torch.nn.Linear`` and a batch norm, say.
        activation: a module, ``torch.nn.ReLU()`` by default; ``torch.nn.Identity()`` for none.

    Plain modules get the features of a sparse tensor, as in :class:`~layoutconv.nn.Sequential`. If
    the body's last convolution is sparse, :func:`~layoutconv.nn.fold_batch_norms` fuses the sum and
    the activation into it: then only the block's convolutions, and one matrix product of ``past``,
    read or write memory.

    >>> from layoutconv.nn import Sequential, SubmConv3d, fold_batch_norms
    >>> body = Sequential(SubmConv3d(4, 4, 3, bias=False), torch.nn.BatchNorm1d(4))
    >>> fold_batch_norms(Residual(body).eval())
    Residual(
      (body): Sequential(
        (0): SubmConv3d(4, 4, kernel_size=(3, 3, 3), activation=relu)
        (1): Identity()
      )
      (past): Identity()
      (activation): Identity()
    )
    """

    __prepare_scriptable__ = refuse_scripting

    def __init__(
        self,
        body: torch.nn.Module,
        past: torch.nn.Module | None = None,
        activation: torch.nn.Module | None = None,
    ) -> None:
        super().__init__()
        for name, module in (("body", body), ("past", past), ("activation", activation)):
            if not isinstance(module, torch.nn.Module) and (module is not None or name == "body"):
                raise ArgumentTypeError(name, "a torch.nn.Module", type(module).__name__)
        self.body = body
        self.past = torch.nn.Identity() if past is None else past
        self.activation = torch.nn.ReLU() if activation is None else activation
        self.is_fused = False  # whether the body's last convolution adds the shortcut

    def forward(self, input: Any) -> Any:
        past = apply(self.past, input)
        if not self.is_fused:
            made = self._at_once(input, past)
            if made is not None:
                return made
            return apply(self.activation, apply(self.body, input) + past)
        assert isinstance(self.body, torch.nn.Sequential)
        *first, last = working(self.body)
        for module in first:
            input = apply(module, input)
        return last(input, residual=past)

    def _at_once(self, input: Any, past: Any) -> Any:
        """Return the result with the sum in the body's last launch; None if that is impossible."""
        body: Any = self.body
        last: Any = self.activation
        if not (has_features(input) and may_fuse(input.features)):
            return None
        if type(body).forward is not Sequential.forward or not runs_only_forward(body):
            return None
        if type(last) is torch.nn.Identity and runs_only_forward(last):
            last = None
        elif type(last) not in ACTIVATIONS:
            return None
        modules = working(body)
        normed = bool(modules) and type(modules[-1]) in NORMS
        norm = modules.pop() if normed else None
        if not modules or not isinstance(modules[-1], SparseConvolution):
            return None
        conv = modules.pop()
        x = in_turn(modules, input)
        made = with_following(conv, x, norm, last, past)
        if made is not None:
            return made
        if norm is not None and norm.training:
            y = apply(conv, x)
            made = trained_features(y, norm, last, past)
            return apply(self.activation, apply(norm, y) + past) if made is None else made
        y = in_turn([conv, norm] if normed else [conv], x) + past
        return apply(self.activation, y)


def working(sequence: torch.nn.Sequential) -> list[Any]:
    """Return the modules of a sequence, without identities that have no hooks.

    >>> working(torch.nn.Sequential(torch.nn.ReLU(), torch.nn.Identity()))
    [ReLU()]
    """
    modules = sequence._modules.values()
    return [m for m in modules if type(m) is not torch.nn.Identity or is_hooked(m)]
