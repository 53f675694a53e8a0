"""A point-cloud user's first day: voxelize points, train a small U-Net, label each point.

python cloud.py
"""

from __future__ import annotations

import torch
from torch import nn

import layoutconv as lc
from layoutconv.sparse.coords.street import street


class Net(nn.Module):
    """A U-Net of two resolutions: strided down, inverse up to the input's voxels, one skip."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.stem = lc.nn.Sequential(
            lc.nn.SubmConv3d(4, 16, 3, bias=False), nn.BatchNorm1d(16), nn.ReLU()
        )
        self.down = lc.nn.SparseConv3d(16, 32, 3, stride=2, padding=1, activation="relu")
        self.inner = lc.nn.SubmConv3d(32, 32, 3, activation="relu")
        self.up = lc.nn.SparseInverseConv3d(32, 16, 3)
        self.head = nn.Linear(32, classes)

    def forward(self, voxels: lc.SparseTensor) -> torch.Tensor:
        """Return the scores, (voxels, classes)."""
        skip = self.stem(voxels)
        up = self.up(self.inner(self.down(skip)))
        return self.head(torch.cat((skip.features, up.features), 1))


def main(steps: int = 20) -> None:
    """Learn which points lie above the median height; print the accuracy over points."""
    torch.manual_seed(0)
    points = torch.from_numpy(street(seed=0))
    labels = (points[:, 2] > points[:, 2].median()).long()
    voxels = lc.voxelize(points, voxel_size=0.5)
    print(f"{len(points):,} points, {len(voxels.features):,} voxels, grid {voxels.spatial_shape}")

    net = Net(2)
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-2)
    loss = torch.zeros(())
    for _ in range(steps):
        logits = lc.devoxelize(voxels.replace(net(voxels)))
        loss = nn.functional.cross_entropy(logits, labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    right = (lc.devoxelize(voxels.replace(net(voxels))).argmax(1) == labels).float().mean()
    print(f"after {steps} steps: loss {loss.item():.3f}, {right.item():.0%} of the points right")


if __name__ == "__main__":
    main()
