"""Errors of torch functions on a sparse tensor, which they do not support."""

from __future__ import annotations

from typing import Any, ClassVar

import torch


class NoTensor:
    """Base of classes that have features but are not ``torch.Tensor``.

    A class names the container that passes its features to torch modules, and says how to apply a
    torch function to them.

    >>> import torch, layoutconv as lc
    >>> x = lc.SparseTensor.from_dense(torch.ones(1, 2, 1))
    >>> torch.nn.ReLU()(x)
    Traceback (most recent call last):
    TypeError: torch's relu takes tensors, not a SparseTensor: put modules of torch in \
lc.nn.Sequential, your own of features in lc.nn.Features, and call functions as \
x.replace(function(x.features))
    """

    _container: ClassVar[str]
    _own_modules: ClassVar[str] = ""
    _applied: ClassVar[str]
    _own: ClassVar[str] = "x.features"

    def __getattr__(self, name: str) -> Any:
        """Raise an error; for attributes of torch tensors it says where to find them."""
        if hasattr(torch.Tensor, name) and not name.startswith("__"):
            raise AttributeError(
                f"a {type(self).__name__} is not a torch.Tensor and has no {name!r}; its features "
                f"are {self._own}, and {self._container} passes them to modules of torch"
            )
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def __array__(self, *_: Any, **__: Any) -> Any:
        """Refuse conversion, and say what can be an array: NumPy would make an array of objects."""
        raise TypeError(
            f"NumPy cannot read a {type(self).__name__}: "
            f"{self._own}.detach().cpu().numpy() is an array of its features"
        )

    @classmethod
    def __torch_function__(
        cls, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        """Refuse torch functions and modules, and say what they take instead."""
        raise TypeError(
            f"torch's {getattr(function, '__name__', function)} takes tensors, not a "
            f"{cls.__name__}: put modules of torch in {cls._container}{cls._own_modules}, and "
            f"call functions as {cls._applied}"
        )
