"""A pack in another process: the same results, and no kernel that is not in it.

Packs are made for a GPU that is not here; a CPU stands in for it, and runs none of the kernels.
"""

from __future__ import annotations

import os
import shutil
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import layoutconv as lc
from layoutconv.deploy.pack_file import KERNELS, read_pack
from layoutconv.gpu import select
from layoutconv.gpu.machines import PackMachine, machine_of, planned_as
from layoutconv.kernels.compile import linked
from layoutconv.planning.machine import MACHINES
from layoutconv.planning.tile import TileConfig
from layoutconv.sparse.views import kernel_map_view

from ..stand_ins import Gpu
from ..warm_process import run_python
from ..watched import Watch
from .networks import IMAGES, ROWS, cloud, dense, equal, sparse

ROOT = Path(__file__).parents[2]
ARCH = "sm_90a"
packs = [
    pytest.mark.slow,
    pytest.mark.skipif(torch.cuda.is_available(), reason="a CPU stands in for an H200"),
    pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler"),
]
LOADED = """
import sys

if sys.argv[3] == "without":
    sys.modules["cutlass"] = None  # whoever imports it is refused
import torch
import layoutconv as lc
from tests.deploy.networks import equal

net = lc.load_pack(sys.argv[1], "cpu")
same = [equal(net(*given), expected) for given, expected in torch.load(sys.argv[2])]
print(all(same), *sorted({name for name in sys.modules if name == "tvm_ffi"}))
"""
# Kernels of the pack are looked for as on a GPU of its architecture that has fewer multiprocessors.
ASKED = """
import dataclasses, sys

if sys.argv[3] == "without":
    sys.modules["cutlass"] = None
import torch
import layoutconv as lc
from layoutconv.deploy.map_kernels import OPERATORS, asker
from layoutconv.deploy.pack_file import read_pack
from layoutconv.planning.machine import MACHINES
from layoutconv.testing import stand_in

about, _ = read_pack(sys.argv[1])
net, used, others = lc.load_pack(sys.argv[1], "cpu"), [], []
net._add(about, lambda name: used.append(name) or stand_in.nothing)
like = dataclasses.replace(MACHINES["sm_90a"], sm_count=78, name="another of its kind")
stand_in.install("count", others.append, like)
for name in OPERATORS:
    net._runner.watch(name, asker(name, like))
for given, _ in torch.load(sys.argv[2]):
    net(*given)
print(len(used), len(set(used)), len(net.kernels), len(others))
"""


@pytest.fixture(scope="module")
def dense_pack(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    net, images = dense()
    many = images.repeat(24, 1, 1, 1).to(memory_format=torch.channels_last)
    folder = tmp_path_factory.mktemp("dense")
    with torch.no_grad():
        return made(net, [(images,), (many,)], folder, ({0: IMAGES},))


@pytest.fixture(scope="module")
def sparse_pack(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    with torch.no_grad():
        folder = tmp_path_factory.mktemp("sparse")
        return made(sparse(), [cloud(300)], folder, ({0: ROWS}, {0: ROWS}))


def made(
    net: torch.nn.Module, examples: list[tuple[torch.Tensor, ...]], folder: Path, shapes: Any
) -> tuple[Path, Path]:
    """A pack, and a file of inputs with their results. One process compiles what is a second's work
    of several, whose imports take ten."""
    pack, calls = folder / "net.pack", folder / "calls.pt"
    count = lc.pack(net, list(examples), pack, arch=ARCH, dynamic_shapes=shapes, processes=1)
    packed = lc.load_pack(pack, "cpu")
    assert count == len(packed.kernels) > 0
    found = [(given, packed(*given)) for given in examples]
    for given, results in found:
        check_close(results, net(*given))
    torch.save(found, calls)
    return pack, calls


def check_close(found: Any, expected: Any) -> None:
    """Check what a program gives: rows of maps are sorted in it, and multiplied in other blocks."""
    if isinstance(found, dict):
        assert equal(found, expected)
    else:
        torch.testing.assert_close(found, expected)


def printed(program: str, pack: tuple[Path, Path], dsl: str) -> str:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    ran = run_python(["-c", program, *map(str, pack), dsl], ROOT, environment)
    assert ran.returncode == 0, ran.stderr
    return ran.stdout.strip()


class TestDense:
    pytestmark = packs

    def test_results_are_the_same_in_a_process_without_the_dsl(self, dense_pack: Any) -> None:
        assert printed(LOADED, dense_pack, "without") == "True"  # and no library is opened

    def test_every_kernel_of_a_call_is_in_the_pack(self, dense_pack: Any) -> None:
        """The stem's packing, the template's, the depthwise one, a sum of slices: each once; of
        many images other tiles."""
        used, distinct, held, others = map(int, printed(ASKED, dense_pack, "without").split())
        assert used == distinct == held >= 7
        assert others == 0

    def test_the_library_has_every_kernel(self, dense_pack: Any) -> None:
        about, parts = read_pack(dense_pack[0])
        assert about["arch"] == ARCH
        get = linked.opened(parts[KERNELS])
        for name in about["kernels"]:
            with pytest.raises(TypeError, match=r"Expects [0-9]+ parameters when calling"):
                get(name)()


class TestSparse:
    pytestmark = packs

    def test_results_are_the_same_in_a_process_without_the_dsl(self, sparse_pack: Any) -> None:
        assert printed(LOADED, sparse_pack, "without") == "True"

    def test_every_kernel_of_a_call_is_in_the_pack(self, sparse_pack: Any) -> None:
        """Three products, and the kernels that make maps; ``tests/kernels/test_packed_maps.py``
        says that these are those which operators launch."""
        used, distinct, held, others = map(int, printed(ASKED, sparse_pack, "without").split())
        assert used == distinct == held >= 8
        assert others == 0


# -- what a pack was planned for -------------------------------------------------------------------


def test_a_call_of_a_pack_plans_for_the_gpu_that_it_was_made_for(gpu: Gpu) -> None:
    here = replace(MACHINES[ARCH], sm_count=78, name="here")
    gpu.like(here)
    with planned_as(PackMachine(MACHINES[ARCH], {})):
        assert machine_of(0) == MACHINES[ARCH]
        with planned_as(PackMachine(MACHINES["sm_80"], {})):
            assert machine_of(0) == here  # its kernels do not run here
        assert machine_of(0) == MACHINES[ARCH]
    assert machine_of(0) == here


def test_a_call_of_a_pack_chooses_what_was_measured_and_measures_nothing(
    monkeypatch: pytest.MonkeyPatch, gpu: Gpu, watched: Watch
) -> None:
    view = kernel_map_view(torch.zeros(27, 4096, dtype=torch.int32).T, 64, 64)
    gpu.like("sm_80")
    monkeypatch.setenv("LAYOUTCONV_TUNE", "1")
    measured = watched("tune_at_need", select.tuning_hook)

    def chosen(choices: Any) -> select.KernelChoice:
        with planned_as(PackMachine(MACHINES["sm_80"], choices)):
            return select.choose_kernel(view, torch.float16, 0)

    by_model = chosen({})
    other = TileConfig((64, 64, 32), (2, 2), 3)
    assert by_model.spec.tile != other
    assert chosen({by_model.key: (other, 1)}).spec.tile == other
    assert not measured
