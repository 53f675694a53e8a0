"""Fuzzers: what nobody wrote by hand, against oracles that share nothing with the code.

``python -m tests.fuzz.expressions`` types notation and expressions, ``commands`` runs the command
line, ``server`` sends to ``--serve``, ``points`` damages point files, ``ranks`` has ranks disagree
in calls of ``layoutconv.distributed``; each takes ``--count``. Short runs of all are tests.
"""
