"""The operations below modules: ``execute``, and the operators that torch differentiates."""

from .execute import execute

__all__ = ["execute"]
