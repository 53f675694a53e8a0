"""The template: an implicit GEMM over three layouts, for Ampere and for Hopper.

Read ``implicit_gemm.py`` first: host launch and device entry. Then read a mainloop,
``mainloop_sm80.py`` or ``mainloop_sm90.py`` (with ``producer.py``, ``consumer.py`` and
``pipeline.py``); the tile schedulers in ``scheduler.py``; ``operand.py``, which turns layouts into
addresses and predicates; and ``epilogue/``.
"""
