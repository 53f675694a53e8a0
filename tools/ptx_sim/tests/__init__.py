"""The simulator against NumPy, against kernels of the CuTe DSL, and against planted faults."""
