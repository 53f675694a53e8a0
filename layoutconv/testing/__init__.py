"""Tests of layout algebras, this one or yours: an oracle, checks, random operands, a suite.

The oracle evaluates layouts by the definitions, from their attributes alone. The checks compare the
result of an operation with its definition over the whole domain, and take the layouts of any
library. :func:`conformance` plays random cases on a library, as does
``python -m layoutconv.testing --library pycute``. ``layoutconv.testing.strategies`` has strategies
of hypothesis, which has to be installed for it. This room may import the algebra alone.
"""

from .checks import (
    WrongResultError,
    check_coalesce,
    check_complement,
    check_composition,
    check_left_inverse,
    check_logical_divide,
    check_logical_product,
    check_right_inverse,
    layout_of,
)
from .conformance import OPERATIONS, Operation, Outcome, conformance
from .random_layouts import OPERAND_KINDS, STRIDE_KINDS, of_kind, operand, random_layout

__all__ = [
    "OPERAND_KINDS",
    "OPERATIONS",
    "STRIDE_KINDS",
    "Operation",
    "Outcome",
    "WrongResultError",
    "check_coalesce",
    "check_complement",
    "check_composition",
    "check_left_inverse",
    "check_logical_divide",
    "check_logical_product",
    "check_right_inverse",
    "conformance",
    "layout_of",
    "of_kind",
    "operand",
    "random_layout",
]
