"""A kernel writer's first day: a view, an epilogue of two lines, and the kernel chosen for them.

python kernel.py
"""

from __future__ import annotations

import torch

import layoutconv as lc
from layoutconv import pointwise as pw
from layoutconv.gpu.explain import explain


def clamp(x, threshold, slope):  # type: ignore[no-untyped-def]
    """Return x up to its column's threshold; above it, x grows by ``slope`` per unit."""
    over = x - threshold
    return pw.where(over > 0, threshold + slope * over, x)


def main() -> None:
    """Compare with torch; print the kernel that an H100 would run, and the fastest alternatives."""
    m, n, k = 256, 192, 128
    product = lc.GemmView(
        a=lc.Layout((m, k), (k, 1)), b=lc.Layout((n, k), (k, 1)), d=lc.Layout((m, n), (n, 1))
    )
    a, b, threshold = torch.randn(m, k), torch.randn(n, k), torch.randn(n)
    step = lc.Pointwise(clamp, columns={"threshold": threshold}, values={"slope": 0.1})
    y = lc.execute(product, a, b, epilogue=step)
    z = a @ b.T
    want = torch.where(z > threshold, threshold + 0.1 * (z - threshold), z)
    print("equals torch:", torch.allclose(y, want, atol=1e-3))

    found = explain(product, torch.float16, "sm_90a", epilogue=lc.Epilogue((step,)), most=4)
    print("tile for an H100 in fp16:", found.spec.tile)
    print("times that the cost model expects:")
    for candidate in found.candidates:
        print(f"  {candidate.microseconds:6.1f} us  {candidate.tile}", candidate.refused)


if __name__ == "__main__":
    main()
