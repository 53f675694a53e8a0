"""Print what the CuTe DSL says of its atoms, traced for one architecture, as JSON.

``python tests/algebra/dsl_atoms.py sm_90a warpgroup_products``. A process of its own for each: the
DSL reads the architecture once.
"""

from __future__ import annotations

import json
import os
import re
import sys

N_WGMMA = (8, 64, 128, 256)
N_TCGEN05 = (16, 32, 256)


def text(x):
    return re.sub(r"\s", "", str(x))


def of_mma(cute, say, name, op):
    atom = cute.make_mma_atom(op)
    say(name, atom.thr_id, atom.shape_mnk, atom.tv_layout_A, atom.tv_layout_B, atom.tv_layout_C)


def of_tiles(cute, say, name, tiled, thread):
    """A tiled mma, and what one thread has of its operands."""
    parts = [
        getattr(tiled.get_slice(thread), f"partition_{operand}")(cute.make_identity_tensor(extents))
        for operand, extents in (("A", (256, 64)), ("B", (128, 64)), ("C", (256, 128)))
    ]
    layouts = [getattr(tiled, f"tv_layout_{operand}_tiled") for operand in "ABC"]
    say(f"tiled {name}", tiled.thr_layout_vmnk, *layouts, *parts)


def of_smem(say, kind, dtype, atom):
    """The DSL's swizzle moves bytes; ours moves elements."""
    say(f"smem {kind} {dtype.width}", atom.inner, atom.outer)


def warp_products(say):
    import cutlass
    import cutlass.cute as cute
    from cutlass.cute.nvgpu import MmaUniversalOp, warp

    f32, e8m0, e4m3 = cutlass.Float32, cutlass.Float8E8M0FNU, cutlass.Float8E4M3FN
    e2m1 = cutlass.Float4E2M1FN
    for k in (8, 16):
        for dtype, kind in ((cutlass.Float16, "f16"), (cutlass.BFloat16, "bf16")):
            op = warp.MmaF16BF16Op(dtype, f32, (16, 8, k))
            of_mma(cute, say, f"m16n8k{k}.{kind}", op)
    for k in (4, 8):
        of_mma(cute, say, f"m16n8k{k}.tf32", warp.MmaTF32Op((16, 8, k)))
    for k in (16, 32):
        of_mma(cute, say, f"m16n8k{k}.e4m3", warp.MmaFP8Op(e4m3, f32, (16, 8, k)))
    of_mma(cute, say, "m16n8k64.e2m1", warp.MmaMXF4Op(e2m1, f32, e8m0))
    of_mma(cute, say, "m16n8k32.e5m2", warp.MmaMXF8Op(cutlass.Float8E5M2, f32, e8m0))
    of_mma(cute, say, "m16n8k32.e4m3.e2m1", warp.MmaMXF8F6F4Op(e4m3, e2m1, f32, e8m0))
    of_mma(cute, say, "m1n1k1.fma", MmaUniversalOp(f32))


def warpgroup_products(say):
    import cutlass
    import cutlass.cute as cute
    from cutlass.cute.nvgpu import OperandMajorMode, warpgroup

    major, f32 = OperandMajorMode.K, cutlass.Float32
    e4m3, i8, i32 = cutlass.Float8E4M3FN, cutlass.Int8, cutlass.Int32
    for n in N_WGMMA:
        for where in warpgroup.OperandSource:
            rest = (where, major, major)
            op = warpgroup.MmaF16BF16Op(cutlass.Float16, f32, (64, n, 16), *rest)
            of_mma(cute, say, f"{n} 16 {where.name}", op)
            if cutlass.const_expr(n == 64 and where.name == "RMEM"):
                for atoms in ((1, 1, 1), (2, 1, 1), (2, 2, 1)):
                    tiled = cute.make_tiled_mma(op, cute.make_layout(atoms))
                    of_tiles(cute, say, f"{atoms[0]} {atoms[1]}", tiled, 77)
            op = warpgroup.MmaF8Op(e4m3, e4m3, f32, (64, n, 32), *rest)
            of_mma(cute, say, f"{n} 8 {where.name}", op)
            op = warpgroup.MmaI8Op(i8, i8, i32, (64, n, 32), *rest)
            of_mma(cute, say, f"{n} 8 {where.name} integers", op)
    for kind in warpgroup.SmemLayoutAtomKind:
        for dtype in (cutlass.Int8, cutlass.Float16, cutlass.Float32):
            of_smem(say, kind.name, dtype, warpgroup.make_smem_layout_atom(kind, dtype))


def products_of_sm_100(say):
    import cutlass
    import cutlass.cute as cute
    from cutlass.cute.nvgpu import OperandMajorMode, tcgen05

    major, f32, f16 = OperandMajorMode.K, cutlass.Float32, cutlass.Float16
    e4m3 = cutlass.Float8E4M3FN
    shared = tcgen05.OperandSource.SMEM
    for ctas, group in ((1, tcgen05.CtaGroup.ONE), (2, tcgen05.CtaGroup.TWO)):
        for m in (64 * ctas, 128 * ctas):
            rest = (group, shared, major, major)
            for n in N_TCGEN05:
                op = tcgen05.MmaF16BF16Op(f16, f32, (m, n, 16), *rest)
                of_mma(cute, say, f"{m} {n} 16 {ctas}", op)
                tiled = cute.make_tiled_mma(op)
                accumulators = tiled.make_fragment_C(tiled.partition_shape_C((m, n)))
                say(f"D {m} {n} {ctas}", accumulators.layout)
                if cutlass.const_expr(n == 32):
                    of_tiles(cute, say, f"{m} {n} {ctas}", tiled, ctas - 1)
            op = tcgen05.MmaTF32Op((m, 64, 8), *rest)
            of_mma(cute, say, f"{m} 64 32 {ctas}", op)
            op = tcgen05.MmaF8F6F4Op(e4m3, e4m3, f32, (m, 64, 32), *rest)
            of_mma(cute, say, f"{m} 64 8 {ctas}", op)
            if cutlass.const_expr(m >= 128):
                of_mma(cute, say, f"{m} 64 4 {ctas}", tcgen05.MmaMXF4Op((m, 64, 64), group, shared))
    for kind in tcgen05.SmemLayoutAtomKind:
        for dtype in (cutlass.Int8, cutlass.Float16, cutlass.Float32):
            of_smem(say, kind.name, dtype, tcgen05.make_smem_layout_atom(kind, dtype))


def copies(say):
    import cutlass
    import cutlass.cute as cute
    from cutlass.cute.nvgpu import CopyUniversalOp, cpasync, tcgen05, warp

    f16, u8, f32 = cutlass.Float16, cutlass.Uint8, cutlass.Float32

    def copy(name, op, dtype, **options):
        atom = cute.make_copy_atom(op, dtype, **options)
        say(f"{dtype.width} {name}", atom.layout_src_tv, atom.layout_dst_tv)

    for times in (1, 2, 4):
        for across, suffix in ((False, ""), (True, ".trans")):
            copy(f"ldmatrix.x{times}{suffix}", warp.LdMatrix8x8x16bOp(across, times), f16)
            copy(f"stmatrix.x{times}{suffix}", warp.StMatrix8x8x16bOp(across, times), f16)
        copy(f"ldmatrix.m8n16.x{times}.b4", warp.LdMatrix8x16x8bOp(False, times, 4), u8)
        copy(f"stmatrix.m16n8.x{times}.trans.b8", warp.StMatrix16x8x8bOp(True, times), u8)
    for times in (1, 2):
        copy(f"ldmatrix.m16n16.x{times}.trans.b8", warp.LdMatrix16x16x8bOp(True, times), u8)
    for size in (4, 8, 16):
        options = {"num_bits_per_copy": 8 * size}
        copy(f"cp.async.{size}", cpasync.CopyG2SOp(), f16, **options)
        copy(f"universal.{8 * size}b", CopyUniversalOp(), f16, **options)
    for shape in ("32x32b", "16x64b", "16x128b", "16x256b", "16x32bx2"):
        most = {"16x128b": 64, "16x256b": 32}.get(shape, 128)
        for way in ("Ld", "St"):
            for times in tcgen05.Repetition:
                if cutlass.const_expr(times.value <= most):
                    op = getattr(tcgen05, f"{way}{shape}Op")(times)
                    copy(f"tcgen05.{way.lower()}.{shape}.x{times.value}", op, f32)


def main(arch, body):
    os.environ["CUTE_DSL_ARCH"] = arch
    import cutlass.cute as cute

    said = {}

    def say(name, *values):
        said[name] = [text(value) for value in values]

    @cute.jit
    def trace():
        body(say)
        print(json.dumps(said))

    cute.compile(trace)


if __name__ == "__main__":
    main(sys.argv[1], globals()[sys.argv[2]])
