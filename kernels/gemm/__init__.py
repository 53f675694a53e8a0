"""The template: an implicit GEMM over three layouts, for Ampere and for Hopper.

Read ``implicit_gemm.py`` first: host launch and device entry. Then a mainloop, ``mainloop_sm80.py``
or ``mainloop_sm90.py`` with ``producer.py``, ``consumer.py`` and ``pipeline.py``; the tile
schedulers of ``scheduler.py``; ``operand.py``, from layouts to addresses and predicates; and
``epilogue/``.
"""
