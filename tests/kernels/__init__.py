"""The kernel template, compiled without a GPU and run in the machine of ``tests/machine``."""
