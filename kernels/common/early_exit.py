"""Early exit of CTAs that have no work."""

from __future__ import annotations

from typing import Any

from .dsl import Int32, llvm


def exit_if(condition: Any) -> None:
    """Exit the threads for which a condition holds: all of a CTA, and of its cluster, or none.

    Exited threads take part in no later barrier, and a dependent kernel (PDL) need not wait for
    them.
    """
    llvm.inline_asm(
        None,
        [Int32(condition).ir_value()],
        "{ .reg .pred p; setp.ne.s32 p, $0, 0; @p exit; }",
        "r",
        has_side_effects=True,
        is_align_stack=False,
        asm_dialect=llvm.AsmDialect.AD_ATT,
    )
