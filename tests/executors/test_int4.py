"""int4 on the CPU, and what of it a GPU runs: the numbers of two in a byte are those of int8."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import layoutconv as lc
from layoutconv.algebra import Layout
from layoutconv.conv import (
    ConvProblem,
    depthwise_fprop_view,
    fprop_view,
    interleaved,
    interleaved_filter,
    wgrad_view,
)
from layoutconv.errors import ArgumentError, ArgumentTypeError
from layoutconv.gpu import plan as gpu_plan
from layoutconv.sparse import kernel_map_view
from layoutconv.tensors.packed_int4 import in_pairs, unpacked
from layoutconv.view.epilogue import Activation, Bias, Scale
from layoutconv.view.gemm_view import GemmView, locate


def numbers(*shape: int, dtype: torch.dtype = torch.int8) -> Tensor:
    generator = torch.Generator().manual_seed(sum(shape))
    return torch.randint(-8, 8, shape, generator=generator).to(dtype)


@pytest.mark.parametrize("dtype", [torch.int8, torch.int16, torch.int32, torch.int64], ids=str)
def test_a_byte_has_an_even_number_in_its_low_bits_and_the_next_one_above(dtype):
    x = torch.cartesian_prod(torch.arange(-8, 8), torch.arange(-8, 8)).to(dtype)
    packed = lc.pack_int4(x)
    assert packed.dtype == torch.int8
    assert packed.shape == (256, 1)
    codes = [(low % 16) + 16 * (high % 16) for low, high in x.tolist()]
    assert packed.view(torch.uint8).flatten().tolist() == codes
    assert torch.equal(lc.unpack_int4(packed), x.to(torch.int8))


def test_any_shape_is_packed_along_its_last_mode():
    for shape in [(2,), (3, 4), (2, 5, 6), (0, 4), (3, 0), (2, 0, 8)]:
        x = numbers(*shape)
        assert lc.pack_int4(x).shape == (*shape[:-1], shape[-1] // 2)
        assert torch.equal(lc.unpack_int4(lc.pack_int4(x)), x)
    across = numbers(6, 4).T  # columns run along memory
    assert lc.pack_int4(across).is_contiguous()
    assert torch.equal(lc.unpack_int4(lc.pack_int4(across)), across)


@pytest.mark.parametrize(
    ("x", "error", "message"),
    [
        (numbers(4, 3), ArgumentError, r"`x`: expected an even extent in .* got shape \(4, 3\)"),
        (torch.tensor(1), ArgumentError, r"an even extent in the last mode, got shape \(\)"),
        (torch.tensor([0, 8]), ArgumentError, "`x`: expected numbers from -8 to 7, got 8"),
        (torch.tensor([-9, 9]), ArgumentError, "expected numbers from -8 to 7, got -9"),
        (torch.ones(2), ArgumentTypeError, "`x`: expected a tensor of int8, .*got torch.float32"),
        ([1, 2], ArgumentTypeError, "`x`: expected a tensor of int8, int16, .* got list"),
    ],
)
def test_what_is_not_packed(x, error, message):
    with pytest.raises(error, match=message):
        lc.pack_int4(x)


def test_what_is_not_unpacked():
    with pytest.raises(ArgumentTypeError, match=r"`packed`: expected a tensor of int8, got"):
        lc.unpack_int4(torch.zeros(2, dtype=torch.uint8))
    with pytest.raises(ArgumentError, match="`packed`: expected at least one mode, got none"):
        lc.unpack_int4(torch.zeros((), dtype=torch.int8))


VIEWS = {
    "2-D": fprop_view(ConvProblem((2, 5, 6, 6), (7, 3, 2), stride=(2, 1), padding=1)),
    "groups": fprop_view(ConvProblem((2, 9, 12), (9, 3), padding=1, groups=3)),
    "kernel map": kernel_map_view(
        torch.randint(-1, 5, (7, 27), generator=torch.Generator().manual_seed(0)).int(), 4, 6
    ),
    "a product": GemmView(Layout((5, 8), (8, 1)), Layout((3, 8), (8, 1)), Layout((5, 3), (3, 1))),
    "a prime number of pairs": GemmView(
        Layout((2, 6884), (6884, 1)), Layout((2, 6884), (6884, 1)), Layout((2, 2), (2, 1))
    ),
    "images of none": fprop_view(ConvProblem((0, 9, 4), (6, 3))),
}
SHAPES = {
    "2-D": ((2, 5, 6, 6), (7, 3, 2, 6)),
    "groups": ((2, 9, 12), (9, 3, 4)),
    "kernel map": ((7, 4), (6, 3, 3, 3, 4)),
    "a product": ((5, 8), (3, 8)),
    "a prime number of pairs": ((2, 6884), (2, 6884)),
    "images of none": ((0, 9, 4), (6, 3, 4)),
}


@pytest.mark.parametrize("name", VIEWS)
def test_results_are_those_of_int8(name):
    view, (a, b) = VIEWS[name], (numbers(*shape) for shape in SHAPES[name])
    want = lc.execute(view, a, b)
    got = lc.execute(view, lc.pack_int4(a), lc.pack_int4(b), dtype="int4")
    assert got.dtype == torch.int32
    assert torch.equal(got, want)
    columns = want.shape[-1]
    steps = (
        Scale(torch.arange(100.0, 100.0 + columns)),
        Bias(torch.ones(columns)),
        Activation("relu"),
    )
    rest: dict[str, Any] = {"epilogue": steps, "out_dtype": torch.int8}
    want = lc.execute(view, a, b, **rest)
    assert want.numel() == 0 or want.max() == 127
    assert torch.equal(
        lc.execute(view, lc.pack_int4(a), lc.pack_int4(b), dtype="int4", **rest), want
    )


@pytest.mark.parametrize("name", [name for name in VIEWS if name != "images of none"])
def test_pairs_are_stored_where_their_numbers_are(name):
    """Element k of a pair view is at the offset that 2 k and 2 k + 1 have, in bytes."""
    view = VIEWS[name]
    pairs = in_pairs(view)
    assert in_pairs(view) is pairs
    assert (pairs.m, pairs.n, pairs.l) == (view.m, view.n, view.l)
    assert pairs.k * 2 == view.k
    k = torch.arange(pairs.k)[None]
    for l in range(view.l):
        grouped = len(view.a.shape) == 3
        whole, half = (view.at(l), pairs.at(l)) if grouped else (view, pairs)
        for of, rows in (("a", view.m), ("b", view.n)):
            row = torch.arange(rows)[:, None]
            (at, there), *numbers = (
                map(torch.as_tensor, locate(getattr(v, of), row, column))
                for v, column in ((half, k), (whole, 2 * k), (whole, 2 * k + 1))
            )
            for i, (offset, valid) in enumerate(numbers):
                assert torch.equal(valid.expand(rows, pairs.k), there.expand(rows, pairs.k))
                assert torch.equal((2 * at + i) * there, offset * there)


def test_interleaved_channels_and_slices_of_a_wider_tensor():
    problem = ConvProblem((2, 5, 6, 128), (16, 3, 3), padding=1)
    x, w = numbers(2, 2, 5, 6, 64), numbers(2, 3, 3, 16, 64)
    view = fprop_view(
        problem,
        activation_layout=interleaved((2, 5, 6, 128), 64),
        filter_layout=interleaved_filter((16, 3, 3, 128), 64),
    )
    packed = lc.pack_int4(x).movedim(1, -1), lc.pack_int4(w).movedim((0, -2), (-1, 0))
    got = lc.execute(view, *packed, dtype="int4")
    plain = x.permute(0, 2, 3, 1, 4).reshape(2, 5, 6, 128)
    weights = w.permute(3, 1, 2, 0, 4).reshape(16, 3, 3, 128)
    assert torch.equal(got, lc.execute(fprop_view(problem), plain, weights))

    wide, w = numbers(2, 9, 20), numbers(6, 3, 4)
    slices = Layout((2, 9, 4), (9 * 20, 20, 1))
    view = fprop_view(ConvProblem((2, 9, 4), (6, 3), padding=1), activation_layout=slices)
    part = lc.pack_int4(wide)[..., 4:6]
    got = lc.execute(view, part, lc.pack_int4(w), dtype="int4")
    plain = fprop_view(ConvProblem((2, 9, 4), (6, 3), padding=1))
    assert torch.equal(got, lc.execute(plain, wide[..., 8:12].contiguous(), w))


def test_unpacked_memory_has_the_strides_of_the_view():
    view = VIEWS["2-D"]
    x = numbers(2, 5, 6, 6)
    found = unpacked(view.a, lc.pack_int4(x))
    assert torch.equal(found, x)
    assert found.stride() == x.stride()


A, B = numbers(2, 5, 4), numbers(6, 3, 4)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"dtype": "int5"}, ArgumentError, "`dtype`: expected None or 'int4', got 'int5'"),
        (
            {"dtype": torch.int4},
            ArgumentError,
            "`dtype`: expected None or 'int4', got torch.int4",
        ),
        (
            {"a": A},
            ArgumentError,
            r"`a`: expected shape \(2, 5, 2\) of \(N,W,C//2\):.* got shape \(2, 5, 4\)",
        ),
        (
            {"a": lc.pack_int4(A).view(torch.uint8)},
            ArgumentTypeError,
            "`a`: expected torch.int8, pairs of int4 as pack_int4 makes them, got torch.uint8",
        ),
        ({"b": lc.pack_int4(B).half()}, ArgumentTypeError, "`b`: expected torch.int8, the dtype"),
        ({"a": [1]}, ArgumentTypeError, "`a`: expected a torch tensor, got list"),
        ({"out_dtype": torch.float64}, ArgumentTypeError, "`out_dtype`: expected .* got"),
        ({"precision": "fp16"}, ArgumentError, "`precision`: expected None, 'tf32' or 'fp32'"),
    ],
)
def test_errors_name_the_argument(arguments, error, message):
    view = fprop_view(ConvProblem((2, 5, 4), (6, 3), padding=1))
    packed = {"a": lc.pack_int4(A), "b": lc.pack_int4(B), "dtype": "int4"}
    with pytest.raises(error, match=message):
        lc.execute(view, **{**packed, **arguments})


def test_views_without_pairs_along_k():
    a, b = (torch.zeros(4, dtype=torch.int8) for _ in "ab")
    odd = fprop_view(ConvProblem((2, 5, 3), (6, 3)))
    across = wgrad_view(ConvProblem((2, 5, 4), (6, 3)))
    for view, found in ((odd, 3), (across, 1)):
        message = f"`view`: expected an even number of elements of a side .* for int4, got {found}"
        with pytest.raises(ArgumentError, match=message):
            lc.execute(view, a, b, dtype="int4")


# -- what a GPU runs, with a machine that is not there --------------------------------------------


@pytest.fixture
def machine(gpu):
    def use(name: str) -> list[Any]:
        specs: list[Any] = []
        gpu.like(name)
        gpu.loads(lambda view, spec: specs.append(spec))
        return specs

    return use


@pytest.mark.parametrize("name", ["sm_80", "sm_86", "sm_89"])
def test_a_plan_multiplies_bytes_as_pairs(machine, name):
    specs = machine(name)
    view = in_pairs(fprop_view(ConvProblem((8, 64, 64, 128), (64, 3, 3), padding=1)))
    for out, splits in ((torch.int32, None), (torch.int8, None), (torch.float32, 4)):
        plan = gpu_plan.plan_of(view, torch.int8, -1, out, "int4", False, "", (16, 16, 16))
        assert isinstance(plan, gpu_plan.Plan)
        gpu_plan.Plan(view, torch.int8, -1, out, precision="int4", splits=splits)
        for spec in specs[-2:]:
            assert (spec.dtype, spec.arch, spec.split) == ("int4", name, "")
            assert spec.vectors[:2] == (16, 16)
            assert spec.tile.k in (64, 128)


def test_a_machine_that_emulates_int4_is_refused(machine):
    specs = machine("sm_90a")
    view = in_pairs(fprop_view(ConvProblem((8, 64, 64, 128), (64, 3, 3), padding=1)))
    message = (
        "`a`: expected a GPU of compute capability 8.0 to 8.9 for int4; unpack_int4 makes int8 "
        "of it, got one of 9.0"
    )
    with pytest.raises(ArgumentTypeError, match=message):
        gpu_plan.Plan(view, torch.int8, -1, torch.int32, precision="int4")
    assert specs == []
    gpu_plan.Plan(view, torch.int8, -1, torch.int32)
    assert [spec.dtype for spec in specs] == ["int8"]


def test_a_depthwise_view_is_refused(machine):
    machine("sm_80")
    view = depthwise_fprop_view(ConvProblem((1, 9, 8), (8, 4), groups=8))
    with pytest.raises(ArgumentError, match="an even number of elements of a side by side along k"):
        in_pairs(view)
