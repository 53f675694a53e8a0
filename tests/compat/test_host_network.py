"""The Python that a network of spconv's names takes before its launches, on a cloud that is new.

Microseconds differ from machine to machine: calls of Python, about 1 us each with what they do
there, are counted in their place.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ..warm_process import run_python

SCRIPT = Path(__file__).with_name("host_network.py")
# Of 21 convolutions over 8 new kernel maps. They were 1558 and, of the rooms below, 2825; of all
# rooms in training 2589, where a convolution and its norm were two functions for autograd, and
# 1914, where each map was counted for itself and found out its tables more than once.
OF_EVALUATION, OF_TRAINING, OF_ALL_IN_TRAINING = 909, 1278, 1700
BELOW = "base", "gpu", "kernels", "ops", "planning", "sparse"


DRY_RUN = """
import json, sys
sys.path.insert(0, {folder!r})
import host_network
from host_network import clouds, network
from layoutconv.gpu.dry_run import dry
from layoutconv.kernels.maps import per_rank
from layoutconv.testing import stand_in

if {on_gpu}:
    load = per_rank.load_per_rank
    host_network.stand_in()
    per_rank.load_per_rank = load
else:
    stand_in.install("count", lambda name: None)
call, keys = network(training={training}), set()
with dry(note_other=lambda key, request: keys.add(key), stands_in=not {on_gpu}):
    call(*next(clouds(1)))
print(json.dumps(sorted(repr(key) for key in keys if key[0] != "segment sum")))
"""


@pytest.mark.parametrize("name", ["evaluation", "training"])
def test_a_dry_run_notes_what_a_gpu_loads(name: str) -> None:
    """A CPU that stands in for a GPU, and a GPU in a dry run, make maps by torch, and note the
    kernels of maps and norms that a first call would launch.
    """
    loads = run_python([str(SCRIPT), "kernels", name], timeout=900)
    assert loads.returncode == 0, loads.stderr
    expected = json.loads(loads.stdout)
    for on_gpu in (False, True):
        of = {"folder": str(SCRIPT.parent), "training": name == "training", "on_gpu": on_gpu}
        noted = run_python(["-c", DRY_RUN.format(**of)], timeout=900)
        assert noted.returncode == 0, noted.stderr
        assert json.loads(noted.stdout) == expected
    assert len(expected) >= (16 if name == "training" else 5)


def test_pairs_of_all_maps_are_counted_by_one_copy() -> None:
    done = run_python([str(SCRIPT), "copies"], timeout=900)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) == 1


def test_a_second_step_loads_no_kernel() -> None:
    """The first records its calls as later ones do: what it compiled serves them."""
    done = run_python([str(SCRIPT), "anew"], timeout=900)
    assert done.returncode == 0, done.stderr
    first, second = json.loads(done.stdout)
    assert (first > 30, second) == (True, 0)


def test_calls_of_python_of_a_network() -> None:
    done = run_python([str(SCRIPT), "evaluation", "training"], timeout=900)
    assert done.returncode == 0, done.stderr
    evaluation, training = json.loads(done.stdout)
    print(evaluation, training)
    assert sum(evaluation.values()) <= OF_EVALUATION, evaluation
    assert sum(training.get(room, 0) for room in BELOW) <= OF_TRAINING, training
    assert sum(training.values()) <= OF_ALL_IN_TRAINING, training
    counted = training["sparse"], training["gpu"], training["ops"], evaluation["sparse"]
    assert min(counted) > 100  # they were counted
