"""Memory after many shapes: what calls keep for those to come has an end, and is small.

Kernels are stood in for by a function that does nothing; everything before a launch is real.
``LAYOUTCONV_SHAPES=10000`` runs the full length. By default there are fewer shapes, and the bounds
of all caches are as much smaller, so that caches fill and drop as often as they do there.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ..warm_process import run_python

ROOT = Path(__file__).parents[2]
WHOLE = 10_000
SHAPES = int(os.environ.get("LAYOUTCONV_SHAPES", "600"))
MOST_MB = 60  # after the whole number of shapes, above the start
NOISE_MB = 4  # of modules that are imported late, and of an allocator that keeps pages
ON_A_GPU = """
from layoutconv.base import devices
from layoutconv.gpu import kernel_source, machines, plan
from layoutconv.kernels.pointwise import loaders
from layoutconv.ops import dense_passes
from layoutconv.planning.machine import MACHINES

machines.stand_in(MACHINES["sm_90a"])
loaders.load_reduction = lambda *of: lambda *operands: None
kernel_source.take_from(loaders.load_reduction)
torch.cuda.device_count = lambda: 1
dense_passes.is_torchs = lambda *of: False
devices.runs_kernels = lambda tensor: True
sys.modules["layoutconv.ops.execute"].execute_cpu = plan.execute_gpu
"""
FORWARD = """
def call(x):
    for _ in range(2):  # by the operator, and as what was kept of that
        lc.conv2d(x, w, padding=1, executor="view")  # oneDNN keeps 1,024 kernels for torch's
"""
TRAINED = """
def call(x):
    for _ in range(2):
        y = lc.conv2d(x.requires_grad_(), w.requires_grad_(), padding=1)
        torch.autograd.grad(y, (x, w), y)
"""
CALLS = """
import ctypes, gc, random
from layoutconv.base import caches
from layoutconv.cpu import view_tables  # these have caches
from layoutconv.gpu import map_views
from layoutconv.ops import dense_calls, dense_passes

def resident():
    gc.collect()
    if on_cpu:  # activations come and go, and the C library keeps their pages
        getattr(ctypes.CDLL(None), "malloc_trim", int)(0)
    [line] = [line for line in open("/proc/self/status") if line.startswith("VmRSS")]
    return int(line.split()[1]) / 1e3

def run(shapes):
    for shape in shapes:
        call(torch.zeros(1, *shape, 16, dtype=dtype).movedim(-1, 1))

for cache in caches._BOUNDED.values():
    cache.most_entries = cache.most_entries * count // whole
    cache.most_bytes = cache.most_bytes * count // whole
every = [(i, j) for i in range(4, 104) for j in range(4, 5 + whole // 100)]
shapes = random.Random(0).sample(every, count + 50)
w = torch.randn(16, 3, 3, 16).to(dtype).movedim(-1, 1)
run(shapes[:50])
lc.clear_caches()
begin = resident()
run(shapes[50:])
print(resident() - begin)
used = [usage for usage in caches.usages().values() if usage.nbytes is not None]
print(max(usage.entries - usage.most_entries for usage in used))
print(max(usage.nbytes - usage.most_bytes for usage in used))
lc.clear_caches()
print(sum(usage.entries for usage in caches.usages().values()))
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="asks Linux how much memory")
@pytest.mark.parametrize("how", ["on a GPU", "trained on a GPU", "on the CPU"])
def test_memory_after_many_shapes(how: str) -> None:
    count = SHAPES if how == "on a GPU" or SHAPES >= WHOLE else SHAPES // 4
    code = f"""
import sys
sys.path.insert(0, {str(ROOT)!r})
import torch
import layoutconv as lc
torch.set_num_threads(1)
whole, count, on_cpu = {WHOLE}, {count}, {"CPU" in how}
dtype = torch.float32 if on_cpu else torch.float16
{ON_A_GPU if "GPU" in how else ""}
{TRAINED if "trained" in how else FORWARD}
{CALLS}
"""
    done = run_python(["-c", code], timeout=1800)
    assert done.returncode == 0, done.stderr
    grown, too_many, too_large, left = map(float, done.stdout.split())
    print(f"{grown:.1f} MB above the start after {count} shapes, {how}")
    assert grown < MOST_MB * count / WHOLE + NOISE_MB
    assert too_many <= 0
    assert too_large <= 0
    assert left == 0
