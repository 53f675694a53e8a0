"""Functions for :class:`layoutconv.Pointwise`: an epilogue of your own.

>>> import torch, layoutconv as lc
>>> from layoutconv import pointwise as pw
>>> def softplus(x):
...     return pw.maximum(x, 0.0) + pw.log(1.0 + pw.exp(-abs(x)))
>>> plain = lc.GemmView(lc.Layout((2, 3), (3, 1)), lc.Layout((1, 3)), lc.Layout((2, 1)))
>>> a, b = torch.tensor([[1.0, 0, 0], [-40, 0, 0]]), torch.ones(1, 3)
>>> lc.execute(plain, a, b, epilogue=lc.Pointwise(softplus))
tensor([[1.3133],
        [0.0000]])
"""

from .view.traced import erf, exp, floor, log, maximum, minimum, rsqrt, sigmoid, sqrt, tanh, where

__all__ = ["erf", "exp", "floor", "log", "maximum", "minimum", "rsqrt", "sigmoid", "sqrt",
           "tanh", "where"]  # fmt: skip
