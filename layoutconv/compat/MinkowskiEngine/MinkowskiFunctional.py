"""torch's functions applied to the features of a tensor or field; further arguments are torch's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch.nn import functional

from .MinkowskiTensor import over_features


def _over_features(function: Callable[..., Any]) -> Callable[..., Any]:
    def over(input: Any, *args: Any, **kwargs: Any) -> Any:
        return over_features(input, function, *args, **kwargs)

    over.__name__ = over.__qualname__ = function.__name__
    over.__doc__ = f"``torch.nn.functional.{function.__name__}`` of the features."
    return over


def _loss(function: Callable[..., Any]) -> Callable[..., Any]:
    def loss(input: Any, target: Any, *args: Any, **kwargs: Any) -> Any:
        of = over_features(input, lambda features: features)  # a tensor or a field
        return function(of.F, target, *args, **kwargs)

    loss.__name__ = loss.__qualname__ = function.__name__
    loss.__doc__ = f"``torch.nn.functional.{function.__name__}`` of the features, a torch tensor."
    return loss


threshold = _over_features(functional.threshold)
relu = _over_features(functional.relu)
hardtanh = _over_features(functional.hardtanh)
hardswish = _over_features(functional.hardswish)
relu6 = _over_features(functional.relu6)
elu = _over_features(functional.elu)
selu = _over_features(functional.selu)
celu = _over_features(functional.celu)
leaky_relu = _over_features(functional.leaky_relu)
prelu = _over_features(functional.prelu)
rrelu = _over_features(functional.rrelu)
glu = _over_features(functional.glu)
gelu = _over_features(functional.gelu)
logsigmoid = _over_features(functional.logsigmoid)
hardshrink = _over_features(functional.hardshrink)
tanhshrink = _over_features(functional.tanhshrink)
softsign = _over_features(functional.softsign)
softplus = _over_features(functional.softplus)
softmin = _over_features(functional.softmin)
softmax = _over_features(functional.softmax)
softshrink = _over_features(functional.softshrink)
log_softmax = _over_features(functional.log_softmax)
tanh = _over_features(functional.tanh)
sigmoid = _over_features(functional.sigmoid)
hardsigmoid = _over_features(functional.hardsigmoid)
silu = _over_features(functional.silu)
dropout = _over_features(functional.dropout)
alpha_dropout = _over_features(functional.alpha_dropout)
normalize = _over_features(functional.normalize)
batch_norm = _over_features(functional.batch_norm)
linear = _over_features(functional.linear)
gumbel_softmax = _over_features(functional.gumbel_softmax)

binary_cross_entropy = _loss(functional.binary_cross_entropy)
binary_cross_entropy_with_logits = _loss(functional.binary_cross_entropy_with_logits)
poisson_nll_loss = _loss(functional.poisson_nll_loss)
cross_entropy = _loss(functional.cross_entropy)
hinge_embedding_loss = _loss(functional.hinge_embedding_loss)
kl_div = _loss(functional.kl_div)
l1_loss = _loss(functional.l1_loss)
mse_loss = _loss(functional.mse_loss)
multilabel_margin_loss = _loss(functional.multilabel_margin_loss)
multilabel_soft_margin_loss = _loss(functional.multilabel_soft_margin_loss)
multi_margin_loss = _loss(functional.multi_margin_loss)
nll_loss = _loss(functional.nll_loss)
smooth_l1_loss = _loss(functional.smooth_l1_loss)
soft_margin_loss = _loss(functional.soft_margin_loss)
