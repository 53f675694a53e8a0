"""Norms over channels in the machine, as the executor launches them, beside float64."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from layoutconv.gpu import channel_norm
from layoutconv.gpu.channel_norm import ChannelNormArgs
from layoutconv.kernels.compile.cubin import read_cubin
from layoutconv.kernels.maps.per_rank import build
from layoutconv.kernels.pointwise import channel_norm as kernels
from layoutconv.planning.channel_schedule import AT_ONCE, ChannelNormShape, lanes_of

from .cloud_launcher import SEEDS, Launches, few
from .draws import draws
from .test_group_norm import EPS, images, numbers
from .test_pdl import MEMORY, START, WAIT


@settings(few, max_examples=draws(10))
@given(
    seed=SEEDS, N=st.integers(1, 3), rows=st.integers(1, 300),
    kind=st.sampled_from([
        (torch.bfloat16, 96, False), (torch.float16, 24, True), (torch.float32, 3, True),
        (torch.float32, 132, False), (torch.bfloat16, 8, True), (torch.float16, 320, False),
    ]),
)  # fmt: skip
def test_it_is_the_norm_of_each_voxel(
    simulated: Launches, seed: int, N: int, rows: int, kind: tuple[torch.dtype, int, bool]
) -> None:
    dtype, C, biased = kind
    simulated.seed = seed
    weight, bias = (numbers(seed + 1 + i, C, dtype=dtype).view(C, 1, 1) for i in range(2))
    norm = ChannelNormArgs(weight, bias if biased else None, C**0.5, 1e-12)
    x = images(seed, N, rows, C, dtype=dtype)
    x[0, :, 0] = 0
    assert channel_norm.takes(x, norm)
    found = channel_norm.normalised(x, norm)
    assert found.stride() == x.stride()
    y = torch.nn.functional.normalize(x.double(), dim=1) * C**0.5 * weight.view(C, 1).double()
    y = y + bias.view(C, 1).double() if biased else y
    limit = EPS[dtype] * y.abs().max().clamp(min=1.0).item()
    torch.testing.assert_close(found.double(), y, rtol=0, atol=limit)


def test_what_is_not_a_number_stays_in_its_voxel(simulated: Launches) -> None:
    x = images(0, 2, 30, 8, dtype=torch.float32)
    x[1, 5, 7], x[0, 2, 3] = torch.nan, torch.inf
    norm = ChannelNormArgs(torch.ones(8), None, 1.0, 1e-12)
    found = channel_norm.normalised(x, norm)
    assert torch.equal(found.isnan(), torch.nn.functional.normalize(x, dim=1).isnan())


def test_a_kernel_takes_weights_of_the_dtype_of_images() -> None:
    x = images(0, 1, 4, 8, dtype=torch.float16)
    weight = torch.ones(8, dtype=torch.float16)
    assert channel_norm.takes(x, ChannelNormArgs(weight, None, 1.0, 1e-12))
    for wrong in weight.float(), weight[:4]:
        assert not channel_norm.takes(x, ChannelNormArgs(wrong, None, 1.0, 1e-12))
    norm = ChannelNormArgs(weight, None, 1.0, 1e-12)
    assert not channel_norm.takes(x.contiguous(), norm)
    assert not channel_norm.takes(x, norm._replace(least=0.0))


@pytest.mark.parametrize("C", [96, 384])
def test_machine_code_moves_vectors(C: int, tmp_path: Path) -> None:
    """Weights once, then the rows of a turn; an element at a time takes four times as long."""
    log_lanes, turns = lanes_of(C // 8)
    shape = ChannelNormShape("bfloat16", 8, log_lanes, turns, False, True)
    built = build(kernels.ChannelNorm(shape), "sm_90a", str(tmp_path))
    (kernel,) = read_cubin(built.__cubin__).values()
    assert kernel.opcodes["LDG"] == turns * (1 + AT_ONCE)
    assert kernel.opcodes["STG"] == turns * AT_ONCE
    assert kernel.stack == 0
    ptx, first = built.__ptx__, re.search(MEMORY, built.__ptx__)
    assert first is not None
    assert ptx.index(START) < ptx.index(WAIT) < first.start()
