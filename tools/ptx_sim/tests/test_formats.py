"""Narrow floating-point formats: laws of rounding, and PyTorch as an independent reference."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from ..formats import FORMATS, decode, encode, fused_multiply_add, fused_multiply_add_64
from .snippets import elementwise

# Infinity times zero and the like are meant.
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")

NARROW = ["f16", "bf16", "tf32", "e4m3", "e5m2"]
ROUNDINGS = ["rn", "rna", "rz", "rm", "rp"]
TORCH = {"f16": torch.float16, "bf16": torch.bfloat16, "e4m3": torch.float8_e4m3fn}
TORCH["e5m2"] = torch.float8_e5m2
floats = st.floats(width=32, allow_nan=False)


def codes_of(name: str) -> np.ndarray:
    form = FORMATS[name]
    return np.arange(1 << form.sign + 1, dtype=np.uint32) << form.shift


@pytest.mark.parametrize("name", TORCH)
def test_every_code_decodes_as_in_torch(name: str) -> None:
    codes = codes_of(name)
    raw = torch.from_numpy(codes.astype(np.uint8 if name[0] == "e" else np.uint16).copy())
    np.testing.assert_array_equal(decode(codes, name), raw.view(TORCH[name]).float().numpy())


@pytest.mark.parametrize("rounding", ROUNDINGS)
@pytest.mark.parametrize("name", NARROW)
def test_what_the_format_holds_is_not_rounded(name: str, rounding: str) -> None:
    codes = codes_of(name)
    value = decode(codes, name)
    exact = ~np.isnan(value)
    np.testing.assert_array_equal(encode(value[exact], name, rounding), codes[exact])
    assert (encode(value[~exact], name, rounding) == FORMATS[name].nan).all()


@pytest.mark.parametrize("name", TORCH)
def test_nearest_is_that_of_torch(name: str) -> None:
    rng = np.random.default_rng(1)
    value = (rng.standard_normal(20000) * np.exp2(rng.uniform(-20, 8, 20000))).astype(np.float32)
    value = value[np.abs(value) <= decode(np.array([FORMATS[name].largest]), name)]
    want = torch.from_numpy(value).to(TORCH[name]).float().numpy()
    np.testing.assert_array_equal(decode(encode(value, name), name), want)


@settings(max_examples=100, deadline=None)
@given(floats, st.sampled_from(NARROW))
def test_directed_roundings_bracket_the_value(value: float, name: str) -> None:
    x = np.array([value], np.float32)
    assume(abs(value) <= decode(np.array([FORMATS[name].largest << FORMATS[name].shift]), name)[0])
    down, up, zero, near = (decode(encode(x, name, r), name)[0] for r in ("rm", "rp", "rz", "rn"))
    assert down <= x[0] <= up
    assert near in (down, up)
    assert zero == (down if value > 0 else up)
    code, next_code = sorted(int(encode(x, name, r)[0]) for r in ("rm", "rp"))
    assert next_code - code in (0, 1 << FORMATS[name].shift)


def test_ties_go_to_even_or_away_from_zero() -> None:
    ties = np.array([1 + 2**-11, 1 + 3 * 2**-11, -1 - 2**-11])
    assert decode(encode(ties, "tf32", "rn"), "tf32").tolist() == [1, 1 + 2**-9, -1]
    assert decode(encode(ties, "tf32", "rna"), "tf32").tolist() == [
        1 + 2**-10,
        1 + 2**-9,
        -1 - 2**-10,
    ]


@pytest.mark.parametrize("rounding", ["rn", "rna"])
@pytest.mark.parametrize("name", ["bf16", "tf32"])
def test_the_upper_bits_of_float32_are_rounded_as_its_value_is(name: str, rounding: str) -> None:
    every = np.arange(2**16, dtype=np.uint32) << 16  # signs, exponents, 7 bits of mantissas
    below = np.array([0, 1, 0xFFF, 0x1000, 0x1001, 0x3000, 0x7FFF, 0x8000, 0x8001, 0xFFFF], "u4")
    values = (every[:, None] | below).reshape(-1).view(np.float32)
    with np.errstate(invalid="ignore"):
        exact = values.astype(np.float64)
    assert np.array_equal(encode(values, name, rounding), encode(exact, name, rounding))


def test_overflow_is_infinity_unless_the_rounding_stops_it() -> None:
    big = np.array([1e30, -1e30, np.inf])
    assert decode(encode(big, "f16"), "f16").tolist() == [np.inf, -np.inf, np.inf]
    assert decode(encode(big, "f16", "rz"), "f16").tolist() == [65504, -65504, np.inf]
    assert decode(encode(big, "f16", "rp"), "f16").tolist() == [np.inf, -65504, np.inf]
    assert decode(encode(big, "e4m3", satfinite=True), "e4m3").tolist() == [448, -448, 448]


def test_fma_rounds_once() -> None:
    # The product is just above a tie of the sum: adding first to 53 bits would land on the tie.
    a, b, c = np.float32(1 + 2**-12), np.float32(1 + 2**-12), np.float32(2**30)
    x, y, z = (np.array([v]) for v in (a, b, c))
    assert fused_multiply_add(x, y, z).view(np.int64)[0] & 1
    assert fused_multiply_add(x, y, np.zeros(1, np.float32))[0] == float(a) * float(b)
    nan = fused_multiply_add(np.array([np.inf]), np.zeros(1), np.ones(1))
    assert np.isnan(nan[0])


def rounded(value: Fraction) -> float:
    """The nearest float64, by comparing with both neighbours; ties to the even one."""
    near = float(value)
    candidates = (np.nextafter(near, -np.inf), near, np.nextafter(near, np.inf))
    distances = [abs(Fraction(float(x)) - value) for x in candidates]
    even = [int(np.float64(x).view(np.int64)) & 1 for x in candidates]
    return float(min(zip(distances, even, candidates, strict=True))[2])


doubles = st.floats(-(2.0**300), 2.0**300, allow_subnormal=False)


@settings(deadline=None)
@given(a=doubles, b=doubles, c=doubles, cancels=st.booleans())
def test_fma_of_doubles_rounds_once(a: float, b: float, c: float, cancels: bool) -> None:
    c = -a * b if cancels else c  # what is left is the rounding error of the product
    exact = Fraction(a) * Fraction(b) + Fraction(c)
    (got,) = fused_multiply_add_64(np.array([a]), np.array([b]), np.array([c]))
    assert got == (rounded(exact) if exact else 0.0)


@pytest.mark.parametrize("spread", [0, 40, 250])
@pytest.mark.parametrize("cancels", [False, True])
def test_fma_of_many_doubles_rounds_once(spread: int, cancels: bool) -> None:
    rng = np.random.default_rng(spread)
    numbers = rng.standard_normal((3, 500))
    numbers[:, ::2] = numbers[:, ::2].astype(np.float32)  # of products that are exact
    numbers[rng.integers(3, size=50), rng.integers(500, size=50)] = 0
    a, b, c = np.ldexp(numbers, rng.integers(-spread, spread + 1, (3, 500)))
    c = np.where(np.arange(500) % 3, -a * b, np.ldexp(a * b, 53)) if cancels else c
    exact = [Fraction(x) * Fraction(y) + Fraction(z) for x, y, z in zip(a, b, c, strict=True)]
    assert fused_multiply_add_64(a, b, c).tolist() == [float(value) for value in exact]


def test_fma_of_doubles_does_not_round_twice() -> None:
    # The product ends just below a tie of the sum; rounded first, it is on it.
    a, b, c = np.array([1 + 2.0**-30]), np.array([0.5 - 2.0**-31]), np.array([2.0**52 + 1])
    assert (a * b + c).tolist() == [2.0**52 + 2]
    assert fused_multiply_add_64(a, b, c).tolist() == [2.0**52 + 1]


def test_fma_of_doubles_at_the_ends() -> None:
    huge, one = np.array([1.5e308]), np.ones(1)
    assert fused_multiply_add_64(huge, 2 * one, -huge).tolist() == [1.5e308]  # a * b is beyond
    assert fused_multiply_add_64(huge, -2 * one, -huge).tolist() == [-np.inf]
    tiny = np.array([2.0**-1000])
    assert fused_multiply_add_64(tiny, tiny, np.array([2.0**-1074])).tolist() == [2.0**-1074]
    zero = fused_multiply_add_64(-one, 0 * one, -0.0 * one)
    assert zero[0] == 0
    assert np.signbit(zero[0])
    special = np.array([np.inf, -np.inf, np.nan, np.inf])
    got = fused_multiply_add_64(special, np.array([1.0, 2.0, 3.0, 0.0]), np.ones(4))
    np.testing.assert_array_equal(got, [np.inf, -np.inf, np.nan, np.nan])


def test_fma_of_doubles_as_an_instruction() -> None:
    """Registers and immediate numbers: ``fma.rn.f64`` with one of them is as many lanes wide."""
    x = np.random.default_rng(7).standard_normal((3, 32))
    got = elementwise("fma.rn.f64 %d, %a, %b, %c;", list(x), "f8")
    np.testing.assert_array_equal(got, fused_multiply_add_64(*x))
    third = elementwise("fma.rn.f64 %d, %a, 0d3FD5555555555555, %b;", list(x[:2]), "f8")
    np.testing.assert_array_equal(third, fused_multiply_add_64(x[0], np.full(32, 1 / 3), x[1]))


SPECIAL = np.array(
    [0.0, -0.0, 1.0, -1.5, np.inf, -np.inf, np.nan, 1e-40, -1e-40, 65520.0, 3e38, 2.0**31],
    np.float32,
)


def unary(instruction: str, out: str = "f4", values: np.ndarray = SPECIAL) -> np.ndarray:
    return elementwise(instruction, [values], out)


def bits(*values: float) -> np.ndarray:
    return np.array(values, np.float32)


def test_nan_becomes_zero_in_integers_and_infinity_saturates() -> None:
    got = unary("cvt.rzi.s32.f32 %d, %a;", "i4")
    lowest, highest = -(2**31), 2**31 - 1
    assert got.tolist() == [0, 0, 1, -1, highest, lowest, 0, 0, 0, 65520, highest, highest]
    assert unary("cvt.rzi.u32.f32 %d, %a;", "u4")[[3, 4, 6]].tolist() == [0, 2**32 - 1, 0]
    assert unary("cvt.rzi.s64.f32 %d, %a;", "i8")[6] == -(2**63)


def test_min_and_max_prefer_numbers_and_their_nan_forms_do_not() -> None:
    one = np.ones_like(SPECIAL)
    for name, number in (("min", np.fmin), ("max", np.fmax)):
        plain = elementwise(f"{name}.f32 %d, %a, %b;", [SPECIAL, one], "f4")
        np.testing.assert_array_equal(plain, number(SPECIAL, one))
        strict = elementwise(f"{name}.NaN.f32 %d, %a, %b;", [SPECIAL, one], "f4")
        assert np.isnan(strict[6])


def test_flush_to_zero_keeps_the_sign_and_only_flushes_subnormals() -> None:
    got = unary("mul.ftz.f32 %d, %a, 0f3F800000;")
    assert got[[7, 8]].tolist() == [0.0, 0.0]
    assert np.signbit(got[8])
    np.testing.assert_array_equal(np.delete(got, [7, 8]), np.delete(SPECIAL, [7, 8]))
    np.testing.assert_array_equal(unary("mul.f32 %d, %a, 0f3F800000;"), SPECIAL)


@pytest.mark.parametrize(
    ("comparison", "with_nan"), [("lt", False), ("ne", False), ("neu", True), ("geu", True)]
)
def test_unordered_comparisons(comparison: str, with_nan: bool) -> None:
    got = unary(f"setp.{comparison}.f32 %p, %a, 0f00000000; selp.u32 %d, 1, 0, %p;", "u4")
    assert bool(got[6]) is with_nan


def test_tests_for_nan() -> None:
    for name, want in (("nan", np.isnan(SPECIAL)), ("num", ~np.isnan(SPECIAL))):
        got = unary(f"setp.{name}.f32 %p, %a, %a; selp.u32 %d, 1, 0, %p;", "u4")
        np.testing.assert_array_equal(got.astype(bool), want)


@pytest.mark.parametrize("name", ["f16", "bf16"])
def test_packed_conversion_puts_the_first_operand_on_top(name: str) -> None:
    rng = np.random.default_rng(2)
    a, b = rng.standard_normal((2, 64)).astype(np.float32)
    got = elementwise(f"cvt.rn.{name}x2.f32 %d, %a, %b;", [a, b], "u4")
    np.testing.assert_array_equal(got, encode(a, name) << 16 | encode(b, name))
    relu = elementwise(f"cvt.rn.relu.{name}x2.f32 %d, %a, %b;", [a, b], "u4")
    np.testing.assert_array_equal(
        relu, encode(np.maximum(a, 0), name) << 16 | encode(np.maximum(b, 0), name)
    )


@pytest.mark.parametrize("name", ["e4m3", "e5m2"])
def test_eight_bit_floats_go_there_and_back(name: str) -> None:
    rng = np.random.default_rng(3)
    a, b = (50 * rng.standard_normal((2, 64))).astype(np.float32)
    pair = elementwise(f"cvt.rn.satfinite.{name}x2.f32 %d, %a, %b;", [a, b], "u2")
    back = elementwise(f"cvt.rn.f16x2.{name}x2 %d, %a;", [pair], "u4").view(np.float16)
    want = torch.from_numpy(np.stack([b, a], 1)).to(TORCH[name]).float().numpy()
    np.testing.assert_array_equal(back.astype(np.float32).reshape(-1, 2), want)


@pytest.mark.parametrize("name", ["f16", "bf16"])
@pytest.mark.parametrize("operation", ["add", "sub", "mul", "fma.rn", "max"])
def test_packed_arithmetic_is_elementwise(name: str, operation: str) -> None:
    rng = np.random.default_rng(4)
    packed = encode(rng.standard_normal((3, 128)), name).astype(np.uint16)
    a, b, c = (torch.from_numpy(x.copy()).view(TORCH[name]).double() for x in packed)
    want = {
        "add": a + b,
        "sub": a - b,
        "mul": a * b,
        "fma.rn": a * b + c,
        "max": torch.maximum(a, b),
    }
    operands = "%a, %b, %c" if operation == "fma.rn" else "%a, %b"
    inputs = [x.view(np.uint32) for x in packed][: 3 if operation == "fma.rn" else 2]
    got = elementwise(f"{operation}.{name}x2 %d, {operands};", inputs, "u4").view(np.uint16)
    np.testing.assert_array_equal(got, encode(want[operation].numpy(), name))


@pytest.mark.parametrize(
    ("instruction", "reference"),
    [
        ("ex2.approx.ftz.f32", np.exp2),
        ("rcp.approx.ftz.f32", np.reciprocal),
        ("rsqrt.approx.f32", lambda x: 1 / np.sqrt(x)),
        ("sqrt.rn.f32", np.sqrt),
        ("lg2.approx.f32", np.log2),
        ("tanh.approx.f32", np.tanh),
        ("sin.approx.f32", np.sin),
        ("cos.approx.f32", np.cos),
    ],
)
def test_functions(instruction: str, reference) -> None:  # type: ignore[no-untyped-def]
    x = np.random.default_rng(5).uniform(0.1, 4, 64).astype(np.float32)
    got = elementwise(f"{instruction} %d, %a;", [x], "f4")
    np.testing.assert_allclose(got, reference(x.astype(np.float64)), rtol=1e-7)


def test_tf32_rounds_half_away() -> None:
    x = np.random.default_rng(6).standard_normal(256).astype(np.float32)
    got = elementwise("cvt.rna.tf32.f32 %d, %a;", [x], "u4")
    want = (x.view(np.uint32) + np.uint32(0x1000)) & np.uint32(0xFFFFE000)
    np.testing.assert_array_equal(got, want)


def test_copysign_and_testp() -> None:
    got = elementwise("copysign.f32 %d, %a, %b;", [-np.ones_like(SPECIAL), SPECIAL], "f4")
    finite = ~np.isnan(SPECIAL)
    np.testing.assert_array_equal(got[finite], -np.abs(SPECIAL)[finite])
    for name, want in (("finite", np.isfinite(SPECIAL)), ("notanumber", np.isnan(SPECIAL))):
        flag = unary(f"testp.{name}.f32 %p, %a; selp.u32 %d, 1, 0, %p;", "u4")
        np.testing.assert_array_equal(flag.astype(bool), want)
