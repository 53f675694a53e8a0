"""The operations below modules: ``execute``, and torch operators with gradients."""

from .execute import execute

__all__ = ["execute"]
