"""A dense user's first day: convert a network, time each convolution beside torch's, revert.

python network.py
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

import layoutconv as lc
from layoutconv.nn.profiling import profile


class Block(nn.Module):
    """Two convolutions and a shortcut."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(channels, channels, 3, padding=1)
        self.second = nn.Conv2d(channels, channels, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        """Return the block's result, with the shape (N, C, H, W) of ``x``."""
        return (x + self.second(self.first(x).relu())).relu()


def main() -> None:
    """Print the report, the largest difference, and the time of each convolution."""
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Conv2d(3, 32, 7, stride=2, padding=3),
        Block(32),
        nn.Conv2d(32, 64, 3, stride=2),
        Block(64),
    )
    x = torch.randn(1, 3, 64, 64)
    want = net(x)
    times = profile(net, [x], seconds=0.02)

    net, report = lc.nn.convert(net, return_report=True)
    print(report)
    print("largest difference:", f"{(net(x) - want).abs().max().item():.1e}")
    print(f"{'module':9} {'convolution':34} {'torch':>8}     speed-up (torch / layoutconv)")
    for layer in times.layers:
        print(f"{layer.name:9} {layer.layer:34} {layer.torch_us:8.0f} us  {layer.gain:.2f}")
    lc.nn.revert(net)
    print("reverted:", torch.equal(net(x), want) or "the same up to rounding")


if __name__ == "__main__":
    main()
