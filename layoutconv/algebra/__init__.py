"""The layout algebra: pure Python over duck-typed integers.

Nothing here imports anything of the package outside this folder, and nothing here imports torch, NumPy or the
CuTe DSL: a layout is evaluated on whatever integers it is given (``int``, integer arrays, values of a kernel that
is being traced). Every other room of the house may import this one.
"""
