"""Epilogue: the steps between accumulators and D, and two stores: smem-staged, register-direct."""
