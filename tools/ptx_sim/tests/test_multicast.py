"""A CuTe DSL kernel whose CTAs load for each other: right as compiled, and faults are caught."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest

from .. import Deadlock, DeviceTensor, Fault, Memory, Stats, launch_of, parse, run
from .planted import Planted, each

pytest.importorskip("cutlass")


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Any:
    from .dsl_multicast import compile_multicast

    return compile_multicast(str(tmp_path_factory.mktemp("dumps")))


def check(compiled: Any, ptx: str, **options: Any) -> Stats:
    """Two copies of A in D, or an error."""
    a = np.random.default_rng(0).standard_normal((128, 192)).astype(np.float16)
    d, memory = np.zeros((2, 128, 192), np.float16), Memory()
    tensors = [
        DeviceTensor(memory.add(a, "a", writable=False), a.shape, "float16"),
        DeviceTensor(
            memory.add(d, "d", output=True), (128, 192, 2), "float16", (192, 1, d[0].size)
        ),
    ]
    kernel = parse(ptx)
    launch = launch_of(kernel, compiled, *tensors, 0)
    assert launch.cluster == (2, 1, 1)
    stats = run(
        kernel, memory, launch.arguments, launch.grid, shared_bytes=launch.shared_bytes,
        cluster=launch.cluster, **options,
    )  # fmt: skip
    np.testing.assert_array_equal(d, np.stack([a, a]))
    return stats


@pytest.mark.parametrize(
    "options", [{}, {"independent": False}, {"late": False}, {"seed": 5}], ids=str
)
def test_both_ctas_get_every_tile(compiled: Any, options: dict[str, Any]) -> None:
    stats = check(compiled, compiled.__ptx__, **options)
    assert stats.count("cp.async.bulk.tensor") == 2 * 2 * 3


PLANTED = [
    ("half the bytes", r"(mov\.b32\s+%r\d+), 8192;", r"\1, 4096;", Fault),
    ("to the first CTA alone", r"(mov\.b16\s+%rs\d+), 3;", r"\1, 1;", Fault),
    ("to a CTA that is not there", r"(mov\.b16\s+%rs\d+), 3;", r"\1, 7;", Fault),
    ("to each CTA from itself", r"\.multicast::cluster(.*), %rs\d+", r"\1", Deadlock),
    ("nobody waits for an empty buffer", r"LAB_WAIT:[^;]*;[^;]*;[^;]*;", "", Fault),
    ("one release is enough", r"(mov\.b32\s+%r\d+), 2;(\s+mbarrier)", r"\1, 1;\2", Fault),
    ("no barrier behind the initialisation", r"barrier\.cluster\.\S+", "", Fault),
    ("no release of the initialisation", r"fence\.mbarrier_init[^;]*;", "", Fault),
    ("the release to itself only", r"mapa.*\n", "\n", Fault),
]


@each(PLANTED)
def test_planted_faults_are_caught(compiled: Any, planted: Planted) -> None:
    planted.is_caught(compiled.__ptx__, partial(check, compiled))
