"""Print what the CuTe DSL says of the cases of tiled_cases.py, as JSON.

``python tests/algebra/dsl_tiled.py SEED COUNT``. A case that it refuses has its error.
"""

from __future__ import annotations

import json
import os
import re
import sys

from tiled_cases import SHAPES, cases, nested

os.environ["CUTE_DSL_ARCH"] = "sm_90a"

import cutlass
import cutlass.cute as cute
from cutlass.cute.nvgpu import CopyUniversalOp, MmaUniversalOp, warp

MODES = {"A": (0, 2), "B": (1, 2), "C": (0, 1)}


def text(*values):
    return [re.sub(r"\s", "", str(value)) for value in values]


def layout(pair):
    shape, stride = pair
    return cute.make_layout(nested(shape), stride=nested(stride))


def tiled_mma(case):
    atom = case.get("atom", "m16n8k16.f16")
    shape = SHAPES.get(atom)
    if atom == "m1n1k1.fma":
        op = MmaUniversalOp(cutlass.Float32)
    elif atom.endswith("tf32"):
        op = warp.MmaTF32Op(shape)
    else:
        op = warp.MmaF16BF16Op(cutlass.Float16, cutlass.Float32, shape)
    asked = case.get("permutation", [None] * 3)
    if any(asked):
        permutation = tuple(layout(p) if isinstance(p, list) else p for p in asked)
        return cute.make_tiled_mma(op, layout(case["atoms"]), permutation_mnk=permutation)
    return cute.make_tiled_mma(op, layout(case["atoms"]))


def universal(values, dtype):
    return cute.make_copy_atom(CopyUniversalOp(), dtype, num_bits_per_copy=values * dtype.width)


def whole(case, operand):
    return cute.make_identity_tensor(tuple(case["extents"][i] for i in MODES[operand]))


def of_mma(case):
    mma = tiled_mma(case)
    said = {"vmnk": text(mma.thr_layout_vmnk)}
    thread = mma.get_slice(case["thread"])
    shape = thread.partition_C(whole(case, "C")).shape
    said["fragment"] = text(cute.make_layout(shape))
    for operand in "ABC":
        said[operand] = text(getattr(mma, f"tv_layout_{operand}_tiled"))
        said[f"partition {operand}"] = text(
            getattr(thread, f"partition_{operand}")(whole(case, operand))
        )
        copy = getattr(cute, f"make_tiled_copy_{operand}")(
            universal(case["values"], cutlass.Float16), mma
        )
        part = copy.get_slice(case["thread"])
        said[f"copy {operand}"] = text(part.partition_S(whole(case, operand)))
    if not any(isinstance(p, list) for p in case["permutation"]):
        fragment = mma.make_fragment_C(mma.partition_shape_C(tuple(case["extents"][:2])))
        copy = cute.make_tiled_copy_C(universal(case["values"], cutlass.Float16), mma)
        said["retile"] = text(copy.retile(fragment).layout)
    copy = cute.make_tiled_copy_C_atom(universal(case["values"], cutlass.Float16), mma)
    said["copy C atom"] = text(
        copy.layout_tv_tiled, copy.get_slice(case["thread"]).partition_D(whole(case, "C"))
    )
    return said


def of_ldmatrix(case):
    mma = tiled_mma(case)
    said = {}
    for operand, matrices in (("A", 4), ("B", 2)):
        op = warp.LdMatrix8x8x16bOp(case["transposed"], matrices)
        atom = cute.make_copy_atom(op, cutlass.Float16)
        copy = getattr(cute, f"make_tiled_copy_{operand}")(atom, mma)
        thread = copy.get_slice(case["thread"])
        said[operand] = text(
            copy.layout_src_tv_tiled,
            copy.layout_dst_tv_tiled,
            thread.partition_S(whole(case, operand)),
            thread.partition_D(whole(case, operand)),
        )
    return said


def of_threads(case):
    atom = universal(case["vector"], cutlass.Float16)
    copy = cute.make_tiled_copy_tv(atom, layout(case["threads"]), layout(case["values"]))
    tensor = cute.make_identity_tensor(tuple(case["extents"]))
    thread = copy.get_slice(case["thread"])
    one = universal(1, cutlass.Float16)
    return {
        "tv": text(copy.layout_tv_tiled),
        "S": text(thread.partition_S(tensor)),
        "D": text(thread.partition_D(tensor)),
        "like S": text(cute.make_tiled_copy_S(one, copy).layout_tv_tiled),
        "like D": text(cute.make_tiled_copy_D(one, copy).layout_tv_tiled),
    }


def of_data(case):
    atom = universal(1, cutlass.Float16)
    copy = cute.make_cotiled_copy(atom, layout(case["threads_values"]), layout(case["data"]))
    tensor = cute.make_identity_tensor(tuple(case["data"][0]))
    part = copy.get_slice(case["thread"]).partition_S(tensor)
    sides = text(copy.layout_src_tv_tiled, copy.layout_dst_tv_tiled)
    return {"tv": text(copy.layout_tv_tiled), "S": text(part), "sides": sides}


def of_layout_tv(case):
    tiler, found = cute.make_layout_tv(layout(case["threads"]), layout(case["values"]))
    return {"tiler": text(cute.make_layout(tiler)), "tv": text(found)}


def of_tensor(case):
    tensor = cute.make_identity_tensor(tuple(case["extents"]))
    tile = cute.local_tile(tensor, tuple(case["tiles"]), tuple(case["crd"]))
    part = cute.local_partition(tensor, layout(case["threads"]), cutlass.Int32(case["thread"]))
    return {"tile": text(tile), "partition": text(part)}


def of_fragment(case):
    found = cute.make_fragment_like(layout([case["shape"], case["stride"]]))
    return {"registers": text(found)}


def main(seed, count):
    found = []

    @cute.jit
    def trace():
        for case in cases(seed, count):
            try:
                found.append(globals()[f"of_{case['kind']}"](case))
            except Exception as error:
                found.append({"error": str(error)[:200]})
        print(json.dumps(found))

    cute.compile(trace)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
