"""Tests for layout algebras, this one or yours: an oracle, checks, random operands, a suite.

The oracle evaluates layouts by definition, from their attributes alone. The checks compare the
result of an operation with its definition over the whole domain, and take the layouts of any
library. :func:`conformance` runs random cases on a library, as does ``python -m layoutconv.testing
--library pycute``. ``layoutconv.testing.strategies`` has hypothesis strategies (install
hypothesis), ``layoutconv.testing.problems`` those for convolutions and point clouds. Only the
latter imports more than the algebra.

The kinds of strides and operands, and an operation of the suite by its name:

>>> STRIDE_KINDS
('int', 'symbolic', 'basis', 'F2', 'gather', 'strided', 'user')
>>> OPERAND_KINDS
('layout', 'swizzled', 'offset', 'tensor', 'shape', 'string')
>>> OPERATIONS["composition by mode"].names
('composition', 'compose')
>>> from random import Random
>>> from layoutconv.algebra import composition
>>> a, b = ADMISSIBLE["composition"](Random(1), "layout", "int")
>>> OPERATIONS["composition"].check(a, b, composition(a, b))
"""

from .admissible import ADMISSIBLE
from .checks import (
    check_complement,
    check_composition,
    check_left_inverse,
    check_max_common_layout,
    check_max_common_vector,
    check_nullspace,
    check_right_inverse,
)
from .checks_modes import (
    check_coalesce,
    check_coalesce_x,
    check_cosize,
    check_downcast,
    check_filter,
    check_filter_zeros,
    check_flatten,
    check_group_modes,
    check_is_injective,
    check_is_surjective,
    check_layout_add,
    check_recast,
    check_slice,
    check_slice_and_offset,
    check_upcast,
    check_with_shape,
)
from .checks_tiles import (
    check_blocked_product,
    check_domain_offset,
    check_flat_divide,
    check_flat_product,
    check_local_partition,
    check_local_tile,
    check_logical_divide,
    check_logical_product,
    check_raked_product,
    check_tile_to_shape,
    check_tiled_divide,
    check_tiled_product,
    check_zipped_divide,
    check_zipped_product,
)
from .compare import WrongResultError, layout_of
from .conformance import OPERATIONS, Operation, Outcome, conformance
from .random_layouts import OPERAND_KINDS, STRIDE_KINDS, of_kind, operand, random_layout

__all__ = [
    "ADMISSIBLE",
    "OPERAND_KINDS",
    "OPERATIONS",
    "STRIDE_KINDS",
    "Operation",
    "Outcome",
    "WrongResultError",
    "check_blocked_product",
    "check_coalesce",
    "check_coalesce_x",
    "check_complement",
    "check_composition",
    "check_cosize",
    "check_domain_offset",
    "check_downcast",
    "check_filter",
    "check_filter_zeros",
    "check_flat_divide",
    "check_flat_product",
    "check_flatten",
    "check_group_modes",
    "check_is_injective",
    "check_is_surjective",
    "check_layout_add",
    "check_left_inverse",
    "check_local_partition",
    "check_local_tile",
    "check_logical_divide",
    "check_logical_product",
    "check_max_common_layout",
    "check_max_common_vector",
    "check_nullspace",
    "check_raked_product",
    "check_recast",
    "check_right_inverse",
    "check_slice",
    "check_slice_and_offset",
    "check_tile_to_shape",
    "check_tiled_divide",
    "check_tiled_product",
    "check_upcast",
    "check_with_shape",
    "check_zipped_divide",
    "check_zipped_product",
    "conformance",
    "layout_of",
    "of_kind",
    "operand",
    "random_layout",
]
