"""Fuzzers: what nobody wrote by hand, against oracles that share nothing with the code."""
