"""The atoms against the traits of CuTe C++, printed by a program that nvcc compiles.

``CUTLASS_PATH`` names a checkout of CUTLASS; no GPU is needed. Layouts are evaluated here, by no
code of the library.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

import layoutconv.algebra as lc
from layoutconv.drawing.named import atom as named

from .tables import table

HEADERS = Path(os.environ.get("CUTLASS_PATH", "-")) / "include"
PRODUCTS = ("sm61", "sm70", "sm75", "sm80", "sm89", "sm90")
LANE = 1 << 21  # bits of CuTe's addresses of tensor memory from a lane to the next
SMEM = [f"{major}_{sw}" for major in ("K", "MN") for sw in ("INTER", "SW32", "SW64", "SW128")]
TYPES = {4: "uint4_t", 8: "uint8_t", 16: "half_t", 32: "float", 64: "double"}
MATRICES = {
    "ldmatrix.x{0}": "SM75_U32x{0}_LDSM_N",
    "ldmatrix.x{0}.trans": "SM75_U16x{1}_LDSM_T",
    "stmatrix.x{0}": "SM90_U32x{0}_STSM_N",
    "stmatrix.x{0}.trans": "SM90_U16x{1}_STSM_T",
    "stmatrix.m16n8.x{0}.trans.b8": "SM100_U8x{2}_STSM_T",
    "ldmatrix.m8n16.x{0}.b4": "SM100_SU4_DU8x16_x{0}_LDSM_N",
    "ldmatrix.m8n16.x{0}.b6": "SM100_SU6_DU8x16_x{0}_LDSM_N",
}  # m16n16 not: CuTe's function reorders the addresses and registers of that instruction
UTCCP = {
    "128x256b": "128dp256bit",
    "128x128b": "128dp128bit",
    "4x256b": "4dp256bit",
    "32x128b.warpx4": "4x32dp128bit",
    "64x128b.warpx2::02_13": "2x64dp128bitlw0213",
    "64x128b.warpx2::01_23": "2x64dp128bitlw0123",
}
PROGRAM = """
#include <cute/tensor.hpp>
#include <cute/atom/copy_traits_sm75.hpp>
#include <cute/atom/copy_traits_sm90.hpp>
#include <cute/atom/copy_traits_sm100.hpp>
#include <cute/atom/mma_atom.hpp>
#include <cute/atom/mma_traits_sm100_frag.hpp>
using namespace cute;
template <class... T> void say(char const* name, T... layouts) {{
  printf("%s", name);
  (..., (printf("|"), print(layouts)));
  printf("\\n");
}}
template <class T> void say_product(char const* name) {{
  using M = MMA_Traits<T>;
  say(name, typename M::ThrID{{}}, typename M::ALayout{{}}, typename M::BLayout{{}},
      typename M::CLayout{{}});
}}
template <class T> void say_copy(char const* name) {{
  say(name, typename Copy_Traits<T>::SrcLayout{{}}, typename Copy_Traits<T>::DstLayout{{}});
}}
template <class T> void say_tmem(char const* name) {{
  using C = Copy_Traits<T>;
  say(name, typename C::SrcLayout{{}}, typename C::DstLayout{{}}, typename C::ValID{{}});
}}
template <class F, int M, int N> void say_fragment(char const* name) {{
  auto shape = make_shape(make_shape(Int<M>{{}}, Int<N>{{}}), _1{{}}, _1{{}});
  say(name, layout<0>(F::make(shape).layout()));
}}
int main() {{
{body}
}}
"""


class Printed:
    """A layout as CuTe prints it: its sizes and strides by leaf."""

    def __init__(self, text):
        shape, stride = (self.read(part) for part in re.split(r":(?=\(|_|\d)", text, maxsplit=1))
        self.modes = [self.leaves(mode) for mode in shape] if isinstance(shape, tuple) else []
        self.leaf = list(zip(self.leaves(shape), self.leaves(stride), strict=True))

    @staticmethod
    def read(text):
        return eval(text.replace("_", ""))  # digits, commas and brackets

    def leaves(self, tree):
        return [x for t in tree for x in self.leaves(t)] if isinstance(tree, tuple) else [tree]

    def extents(self):
        sizes = []
        for mode in self.modes:
            sizes.append(1)
            for extent in mode:
                sizes[-1] *= extent
        return sizes

    def values(self):
        """The offsets of all coordinates, the first mode fastest."""
        found = [0]
        for extent, stride in self.leaf:
            found = [at + stride * i for i in range(extent) for at in found]
        return found


@pytest.fixture(scope="module")
def said(tmp_path_factory):
    """The layouts that the program says of each name."""
    if not (HEADERS / "cute").is_dir() or not shutil.which("nvcc"):
        pytest.skip("CUTLASS_PATH names no checkout, or there is no nvcc")
    folder = tmp_path_factory.mktemp("cpp")
    (folder / "say.cu").write_text(PROGRAM.format(body="\n".join(body())))
    flags = ["-std=c++17", "--expt-relaxed-constexpr", "-arch=sm_100a", f"-I{HEADERS}"]
    command = ["nvcc", *flags, "say.cu", "-o", "say"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    assert not done.returncode, done.stderr[-2000:]
    lines = subprocess.run(["./say"], cwd=folder, capture_output=True, text=True).stdout
    return {line.split("|")[0]: line.split("|")[1:] for line in lines.splitlines()}


def products():
    """The instructions of a warp that the headers have traits of, less those of complex numbers."""
    for arch in PRODUCTS:
        text = (HEADERS / f"cute/atom/mma_traits_{arch}.hpp").read_text()
        for name in re.findall(r"struct MMA_Traits<(SM\d+_\w+)>", text):
            if "C64" not in name:
                yield name


def tmem_names():
    for name in lc.copy_names():
        if found := re.fullmatch(r"tcgen05\.(ld|st)\.(\d+)x(\d+)b(?:x2)?\.x(\d+)", name):
            way = {"ld": "LOAD", "st": "STORE"}[found[1]]
            yield name, f"SM100_TMEM_{way}_{found[2]}dp{found[3]}b{found[4]}x"


def matrix_names():
    for name, theirs in MATRICES.items():
        for n in (1, 2, 4):
            yield name.format(n), theirs.format(n, 2 * n, 4 * n)


def accumulators():
    """Names, M, N, CTAs, ``.ws`` or not, and CuTe's fragment."""
    for n in (16, 32, 64, 128, 256):
        for m, ctas in ((64, 1), (128, 1), (128, 2), (256, 2)):
            yield f"D {m} {n} {ctas}", m, n, ctas, False, f"UMMA::tmem_frg<float, float, {ctas}>"
        for m in (32, 64, 128) if n >= 64 else ():
            yield f"ws {m} {n}", m, n, 1, True, "UMMA::tmem_frg_ws<float, float, 1>"


def body():
    for name in products():
        yield f'  say_product<{name}>("{name}");'
    for n in range(8, 257, 8):
        yield f'  say("wgmma {n}", GMMA::CLayout_64xN<{n}>{{}});'
    for k in (8, 16, 32):
        yield f'  say("wgmma A {k}", GMMA::ALayout_64x{k}{{}});'
    for name, theirs in tmem_names():
        yield f'  say_tmem<{theirs}>("{name}");'
    for shape, theirs in UTCCP.items():
        yield f'  say_tmem<SM100::TMEM::UTCCP::SM100_UTCCP_{theirs}_1cta>("tcgen05.cp.{shape}");'
    for name, theirs in matrix_names():
        yield f'  say_copy<{theirs}>("{name}");'
    for name, m, n, ctas, _, fragment in accumulators():
        yield f'  say_fragment<{fragment}, {m // ctas}, {n}>("{name}");'
    for bits, kind in TYPES.items():
        for name in (*SMEM, "MN_SW128_32B"):
            yield f'  say("{name} {bits}", UMMA::Layout_{name}_Atom<{kind}>{{}});'


def test_products_of_a_warp(said):
    names = list(products())
    assert len(names) > 70
    for name in names:
        atom = named(re.sub("_(SATURATE|XORPOPC|ANDPOPC)$", "", name))
        theirs = [Printed(text).values() for text in said[name]]
        assert theirs[0] == table(atom.thr_id), name
        for operand, values in zip("ABC", theirs[1:], strict=True):
            assert values == table(atom.fragment(operand)), f"{operand} of {name}"


def test_fragments_of_a_warpgroup(said):
    for n in range(8, 257, 8):
        assert Printed(said[f"wgmma {n}"][0]).values() == table(lc.wgmma_atom(n).c)
    for k in (8, 16, 32):
        atom = lc.wgmma_atom(8, 256 // k, a_in_registers=True)
        assert Printed(said[f"wgmma A {k}"][0]).values() == table(atom.a)


def test_copies_of_matrices(said):
    for name, _ in matrix_names():
        source, destination = (Printed(text).values() for text in said[name])
        atom = lc.copy_atom(name)
        assert (source, destination) == (table(atom.source), table(atom.destination)), name


def test_registers_of_tensor_memory(said):
    names = list(tmem_names())
    assert len(names) == 2 * (3 * 8 + 7 + 6)
    for name, _ in names:
        atom = lc.copy_atom(name)
        source, destination, place = map(Printed, said[name])
        theirs, mine = (destination, atom.destination) if ".ld." in name else (source, atom.source)
        assert theirs.extents() == [32, mine[1].size()], name
        places = place.values()
        lanes = [divmod(at, atom.row_bits) for at in table(mine)]
        assert [places[at] for at in theirs.values()] == [LANE * l + b for l, b in lanes], name


def test_copies_into_tensor_memory(said):
    for shape in UTCCP:
        atom = lc.copy_atom(f"tcgen05.cp.{shape}")
        source, destination, place = (Printed(text).values() for text in said[atom.name])
        row, bits = atom.row_bits, len(table(atom.source))
        if shape == "4x256b":  # CuTe has them as four rows of a block of 128
            source = [at % 128 // 32 + at // 128 * 4 for at in source]
        rows = bits // row if shape == "4x256b" else int(shape.split("x")[0])
        if shape.endswith("01_23"):  # rows of 32, then bits, then the other rows of 32
            source = [at % 32 + at // 4096 * 32 + at % 4096 // 32 * 64 for at in source]
        theirs = {
            (at % rows, at // rows, *divmod(places, LANE))
            for at, places in zip(source, (place[at] for at in destination), strict=True)
        }
        mine = zip(table(atom.source), table(atom.destination), strict=True)
        assert theirs == {(*divmod(s, row), *divmod(d, row)) for s, d in mine}, shape


def test_accumulators_in_tensor_memory(said):
    for name, m, n, ctas, stationary, _ in accumulators():
        layout = lc.tmem_accumulator(m, n, cta_group=ctas, weight_stationary=stationary)
        rows = m // ctas
        places = [tuple(layout(i, j)) for j in range(n) for i in range(rows)]
        theirs = Printed(said[name][0]).values()
        assert theirs == [65536 * place[0] + (*place, 0)[1] for place in places], name


def test_layouts_of_shared_memory(said):
    for bits in TYPES:
        for name in (*SMEM, "MN_SW128_32B"):
            (text,) = said[f"{name} {bits}"]
            swizzle, layout = text.split(" o ")[0], Printed(text.rsplit(" o ", 1)[1])
            b, base, shift = map(int, re.fullmatch(r"Sw<(\d),(\d),(\d)>", swizzle).groups())
            atom = lc.smem_atom(name, bits)
            rows, columns = layout.extents()
            assert rows == atom.inner[0].size()
            if (
                name == "MN_SW128_32B"
            ):  # the DSL and we have eight columns, C++ the four that differ
                assert columns == 4
            else:
                assert columns == atom.inner[1].size()
            mine = [atom(i, j) for j in range(columns) for i in range(rows)]
            for at, place in zip(layout.values(), mine, strict=True):
                byte = at * bits // 8
                byte ^= byte >> shift & ((1 << b) - 1) << base  # CuTe's swizzle moves bytes
                assert 8 * byte + at * bits % 8 == place * bits
