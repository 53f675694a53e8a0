"""THE template: an implicit GEMM over three layouts, for Ampere and for Hopper."""
