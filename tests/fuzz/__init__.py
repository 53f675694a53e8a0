"""Fuzzers: what nobody wrote by hand, against parsers and rules that share nothing with the code.

``python -m tests.fuzz.points --count 10000`` damages point files, and compares ``read_points`` with
the strict parsers here. ``python -m tests.fuzz.ranks --count 200`` has ranks disagree in calls of
``layoutconv.distributed``. Short runs of both are tests.
"""
