"""Tiled mmas and copies on random arguments: the CuTe DSL traces them, and says the same.

``LAYOUTCONV_TILED=4000 python -m pytest tests/algebra/test_tiled_dsl.py`` asks more often.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from tiled_cases import cases, nested

import layoutconv.algebra as lc
from layoutconv.algebra import Layout

COUNT = int(os.environ.get("LAYOUTCONV_TILED", "160"))
SEED = int(os.environ.get("LAYOUTCONV_TILED_SEED", "1"))
MODES = {"A": (0, 2), "B": (1, 2), "C": (0, 1)}


def layout(pair):
    return Layout(*map(nested, pair))


def tiled_mma(case):
    asked = case.get("permutation", [None] * 3)
    permutation = tuple([layout(p) if isinstance(p, list) else p for p in asked])
    atom = lc.mma_atom(case.get("atom", "m16n8k16.f16"))
    return lc.make_tiled_mma(atom, layout(case["atoms"]), permutation)


def whole(case, operand):
    return lc.make_identity_tensor(tuple([case["extents"][i] for i in MODES[operand]]))


def of_mma(case):
    mma, said = tiled_mma(case), {}
    thread = mma.get_slice(case["thread"])
    said["vmnk"] = [mma.thr_layout_vmnk]
    said["fragment"] = [thread.partition_fragment_C(whole(case, "C"))]
    for operand in "ABC":
        said[operand] = [mma.layout_tv(operand)]
        said[f"partition {operand}"] = [thread.partition(operand, whole(case, operand))]
        unit = lc.universal_copy(case["values"])
        copy = getattr(lc, f"make_tiled_copy_{operand}")(unit, mma).get_slice(case["thread"])
        said[f"copy {operand}"] = [copy.partition_S(whole(case, operand))]
    if not any(isinstance(p, list) for p in case["permutation"]):
        # Permuted, CuTe's is another than what partition_D writes: docs/algebra/discrepancies.md.
        fragment = mma.partition_fragment("C", tuple(case["extents"][:2]))
        copy = lc.make_tiled_copy_C(lc.universal_copy(case["values"]), mma)
        said["retile"] = [copy.retile(fragment)]
    copy = lc.make_tiled_copy_C_atom(lc.universal_copy(case["values"]), mma)
    part = copy.get_slice(case["thread"]).partition_D(whole(case, "C"))
    said["copy C atom"] = [copy.layout_tv, part]
    return said


def of_ldmatrix(case):
    mma, said = tiled_mma(case), {}
    suffix = ".trans" if case["transposed"] else ""
    for operand, matrices in (("A", 4), ("B", 2)):
        unit = lc.copy_unit(lc.copy_atom(f"ldmatrix.x{matrices}{suffix}"))
        copy = getattr(lc, f"make_tiled_copy_{operand}")(unit, mma)
        thread, tensor = copy.get_slice(case["thread"]), whole(case, operand)
        parts = [thread.partition_S(tensor), thread.partition_D(tensor)]
        said[operand] = [copy.layout_src_tv, copy.layout_dst_tv, *parts]
    return said


def of_threads(case):
    unit, one = lc.universal_copy(case["vector"]), lc.universal_copy(1)
    copy = lc.make_tiled_copy_tv(unit, layout(case["threads"]), layout(case["values"]))
    thread = copy.get_slice(case["thread"])
    tensor = lc.make_identity_tensor(tuple(case["extents"]))
    return {
        "tv": [copy.layout_tv],
        "S": [thread.partition_S(tensor)],
        "D": [thread.partition_D(tensor)],
        "like S": [lc.make_tiled_copy_S(one, copy).layout_tv],
        "like D": [lc.make_tiled_copy_D(one, copy).layout_tv],
    }


def of_data(case):
    copy = lc.make_cotiled_copy(
        lc.universal_copy(1), layout(case["threads_values"]), layout(case["data"])
    )
    tensor = lc.make_identity_tensor(tuple(case["data"][0]))
    part = copy.get_slice(case["thread"]).partition_S(tensor)
    return {"tv": [copy.layout_tv], "S": [part], "sides": [copy.layout_src_tv, copy.layout_dst_tv]}


def of_layout_tv(case):
    tiler, found = lc.make_layout_tv(layout(case["threads"]), layout(case["values"]))
    return {"tiler": [Layout(tiler)], "tv": [found]}


def of_tensor(case):
    tensor = lc.make_identity_tensor(tuple(case["extents"]))
    tile = lc.local_tile(tensor, tuple(case["tiles"]), tuple(case["crd"]))
    part = lc.local_partition(tensor, layout(case["threads"]), case["thread"])
    return {"tile": [tile], "partition": [part]}


def of_fragment(case):
    return {"registers": [lc.make_fragment_like(layout([case["shape"], case["stride"]]))]}


def traced(seed, count):
    """Return what the DSL says of the cases, traced in a process of its own."""
    pytest.importorskip("cutlass")
    script = Path(__file__).with_name("dsl_tiled.py")
    command = [sys.executable, str(script), str(seed), str(count)]
    done = subprocess.run(command, capture_output=True, text=True)
    said = [line for line in done.stdout.splitlines() if line.startswith("[")]
    if not said:  # no compiler for the host
        pytest.skip(f"the CuTe DSL does not trace here: {done.stderr[-2000:]}")
    return json.loads(said[0])


def read(said):
    """A layout, or a tensor of coordinates, as a list of its modes' sizes and of all values."""
    tensor = re.fullmatch(r"tensor<\(([-\d,]*)\)o(.*)>", said)
    found = lc.parse(tensor[2] if tensor else said)
    offset = tuple(map(int, tensor[1].split(","))) if tensor else 0
    return sizes(found), [plus(offset, found(i)) for i in range(found.size())]


def plus(offset, value):
    if not isinstance(offset, tuple):
        return value
    terms = tuple(value) if not isinstance(value, int) else ()  # 0 is the coordinate of zeros
    padded = terms + (0,) * (len(offset) - len(terms))
    return tuple([a + b for a, b in zip(offset, padded, strict=True)])


def sizes(found):
    shape = found.shape if isinstance(found.shape, tuple) else (found.shape,)
    return [lc.size(mode) for mode in shape]


def shown(found, like):
    """Ours in the form of :func:`read`."""
    values = [found(i) for i in range(lc.size(found))]
    if "tensor" in like:
        width = len(re.match(r"tensor<\(([^)]*)\)", like)[1].split(","))
        values = [plus((0,) * width, v if isinstance(v, int) else tuple(v)) for v in values]
    return sizes(found), values


def test_random_arguments():
    asked = cases(SEED, COUNT)
    refused = 0
    for case, said in zip(asked, traced(SEED, COUNT), strict=True):
        if "error" in said:
            refused += 1
            continue
        ours = globals()[f"of_{case['kind']}"](case)
        assert set(ours) == set(said)
        for name, texts in said.items():
            for theirs, mine in zip(texts, ours[name], strict=True):
                assert shown(mine, theirs) == read(theirs), (case, name, theirs, str(mine))
    assert refused <= COUNT // 20
