"""On a CPU networks run and train where the CuTe DSL cannot be imported, and nothing imports it."""

from __future__ import annotations

from pathlib import Path

import pytest

from ..warm_process import run_python

PROGRAM = """
import sys

sys.modules["cutlass"] = sys.modules["tvm_ffi"] = None  # whoever imports them is refused
import torch
import layoutconv as lc
from layoutconv.compat.spconv import pytorch as spconv

torch.manual_seed(0)
dense = lc.nn.Conv2d(3, 4, 3, padding=1)
dense(torch.randn(1, 3, 5, 5)).sum().backward()
cells = torch.cartesian_prod(torch.arange(2), *[torch.arange(4)] * 3).int()
net = lc.nn.Sequential(
    lc.nn.SubmConv3d(3, 4, 3), torch.nn.BatchNorm1d(4), torch.nn.ReLU(),
    lc.nn.SparseConv3d(4, 5, 3, stride=2), lc.nn.SparseInverseConv3d(5, 4, 3),
)
net(lc.SparseTensor(torch.randn(128, 3), cells, (4, 4, 4), 2)).features.sum().backward()
assert all(parameter.grad is not None for parameter in net.parameters())
layer = spconv.SubMConv3d(3, 4, 3)
layer(spconv.SparseConvTensor(torch.randn(128, 3), cells, [4, 4, 4], 2)).features.sum().backward()
with torch.no_grad():
    lc.nn.graphed(net.eval())(lc.SparseTensor(torch.randn(128, 3), cells, (4, 4, 4), 2))
print(*sorted(name for name in sys.modules if name.split(".")[0] in ("cutlass", "tvm_ffi")))
"""


def test_networks_run_where_the_dsl_is_not() -> None:
    found = run_python(["-c", PROGRAM])
    assert found.returncode == 0, found.stderr
    assert found.stdout.split() == ["cutlass", "tvm_ffi"]


DESCRIBED = """
import sys

sys.modules["cutlass"] = None
from layoutconv.kernels.maps import build_map, inverse, occupancy_bitmap, output_coords, pairs
from layoutconv.kernels.maps.per_rank import load_per_rank
from layoutconv.kernels.pointwise import gather_pool, row_norm, segment_sum
kernel = occupancy_bitmap.WriteCells(2)
print(kernel.key, kernel.tensors())
try:
    load_per_rank(kernel, "sm_90a")
except ModuleNotFoundError as error:
    print(error.name, error, sep=": ")
"""


def test_kernels_of_clouds_are_described_where_the_dsl_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LAYOUTCONV_CACHE_DIR", str(tmp_path))
    found = run_python(["-c", DESCRIBED])
    assert found.returncode == 0, found.stderr
    described, refused = found.stdout.splitlines()
    assert described.startswith("('WriteCells', 2) ((")
    assert refused.startswith(
        "cutlass: a kernel is compiled by the CuTe DSL, which is not installed"
    )
