"""The Python that a network of spconv's names takes before its launches, on a cloud that is new.

Microseconds differ from machine to machine: calls of Python, about 1 us each with what they do
there, are counted in their place.
"""

from __future__ import annotations

import json
from pathlib import Path

from ..warm_process import run_python

SCRIPT = Path(__file__).with_name("host_network.py")
# Of 21 convolutions over 8 new kernel maps. They were 1558 and, of the rooms below, 2825. Training
# has 225 for 21 norms with what follows, in place of torch's modules and operators.
OF_EVALUATION, OF_TRAINING = 1140, 1910 + 225
BELOW = "base", "gpu", "kernels", "ops", "planning", "sparse"


def test_calls_of_python_of_a_network() -> None:
    done = run_python([str(SCRIPT), "evaluation", "training"], timeout=900)
    assert done.returncode == 0, done.stderr
    evaluation, training = json.loads(done.stdout)
    print(evaluation, training)
    assert sum(evaluation.values()) <= OF_EVALUATION, evaluation
    # The modules of training are no part of this.
    assert sum(training.get(room, 0) for room in BELOW) <= OF_TRAINING, training
    assert min(training["sparse"], evaluation["gpu"], training["ops"]) > 100  # they were counted
