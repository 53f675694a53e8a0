"""The kernel template, compiled without a GPU and run in the simulator in ``tools/ptx_sim``."""
