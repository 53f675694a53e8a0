"""Predicated instructions that the DSL has no operation for."""

from __future__ import annotations

from typing import Any

from .dsl import Int32, llvm


def predicated(instruction: str, condition: Any, clobbers: str = "") -> None:
    """Run a PTX instruction without operands in the threads for which a condition holds.

    ``clobbers``: what the compiler may not keep over it, such as "~{memory}".
    """
    llvm.inline_asm(
        None,
        [Int32(condition).ir_value()],
        f"{{ .reg .pred p; setp.ne.s32 p, $0, 0; @p {instruction}; }}",
        ",".join(filter(None, ("r", clobbers))),
        has_side_effects=True,
        is_align_stack=False,
        asm_dialect=llvm.AsmDialect.AD_ATT,
    )
