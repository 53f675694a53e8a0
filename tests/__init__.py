"""Tests, a folder per room; ``machine`` is a tool that several of them use."""
