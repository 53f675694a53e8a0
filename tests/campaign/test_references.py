"""The references, against torch's own convolutions and the definition of a view."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch.nn import functional

from layoutconv.view.gemm_view import locate

from .clouds import draw_cells
from .dense import draw_dense
from .dense_run import bilinear
from .sparse import CLOUDS, draw_sparse
from .sparse_geometry import geometry_of, shape_of
from .sparse_reference import TapSums, inverse
from .views import draw_view


def test_dense_passes_are_torch_convolutions() -> None:
    for seed in range(0, 700, 7):
        p = draw_dense(seed, "tiny")
        if not p.N:
            continue
        generator = torch.Generator().manual_seed(seed)
        of = {"generator": generator, "dtype": torch.float64, "requires_grad": True}
        x, w = torch.randn(p.N, p.C, *p.spatial, **of), torch.randn(p.filter, **of)
        sides = [side for pair in reversed(p.padding) for side in pair]
        if p.transposed:
            plain = getattr(functional, f"conv_transpose{p.rank}d")
            y = plain(x, w, None, p.stride, 0, 0, p.groups, p.dilation)
            # Padding is cut off, output padding is added.
            ends = zip(p.padding, p.output_padding, strict=True)
            cut = [side for (n, f), o in reversed(list(ends)) for side in (-n, o - f)]
            y = functional.pad(y, cut)
        else:
            plain = getattr(functional, f"conv{p.rank}d")
            y = plain(functional.pad(x, sides), w, None, p.stride, 0, p.dilation, p.groups)
        assert y.shape[2:] == p.result_cells
        g = torch.randn(y.shape, generator=generator, dtype=torch.float64)
        dx, dw = torch.autograd.grad(y, (x, w), g)
        form = bilinear(p)
        a, b = x.detach(), w.detach()
        for got, want in (
            (form.forward(a, b), y),
            (form.back_x(g, b), dx),
            (form.back_w(g, a), dw),
        ):
            torch.testing.assert_close(got, want.detach())


@pytest.mark.parametrize("cloud", CLOUDS)
def test_sparse_passes_are_dense_ones_at_the_cells(cloud: str) -> None:
    tried = 0
    for seed in range(400):
        p = draw_sparse(seed, "tiny")
        fits = p.rank < 4 and not p.offsets and not p.given and p.capacity < 0 and p.cloud == cloud
        if not fits or p.layer not in ("subm", "strided", "transposed") or cloud == "far":
            continue
        tried += 1
        cells = draw_cells(p, torch.Generator().manual_seed(seed)).long()
        geometry = geometry_of(p, cells, torch.Generator())
        there = cells[:, 0] >= 0
        x = torch.randn(len(cells), p.C, dtype=torch.float64)
        w = torch.randn(p.filter, dtype=torch.float64)
        grid = torch.zeros(p.images, *p.extents, p.C, dtype=torch.float64)
        grid[tuple(cells[there].T)] = x[there]
        want = _dense(p, grid.movedim(-1, 1), w)
        y = TapSums(geometry.index, len(cells), p.groups).forward(x, w)
        real = geometry.outputs[:, 0] >= 0
        found = geometry.outputs[real]
        assert tuple(want.shape[2:]) == shape_of(p)
        torch.testing.assert_close(y[real], want.movedim(1, -1)[tuple(found.T)])
        rest = want.movedim(1, -1).clone()
        rest[tuple(found.T)] = 0
        if p.layer != "subm":  # no cell is missing, and rows are in order
            assert rest.abs().max() < 1e-9 if rest.numel() else True
            assert found.tolist() == sorted(found.tolist())
        again = inverse(inverse(geometry.index, len(cells)), len(geometry.outputs))
        assert torch.equal(again, geometry.index)
    assert tried or cloud == "far"


def _dense(p, grid, w):
    """torch's convolution of the whole grid; of a submanifold layer, centred."""
    filter = w.movedim(-1, 1)
    if p.layer == "transposed":
        filter = filter.unflatten(0, (p.groups, -1)).transpose(1, 2).flatten(0, 1)
        function = getattr(functional, f"conv_transpose{p.rank}d")
        y = function(grid, filter, None, p.stride, 0, 0, p.groups, p.dilation)
        ends = list(zip(p.padding, p.output_padding, strict=True))
        return functional.pad(y, [s for (n, f), o in reversed(ends) for s in (-n, o - f)])
    pairs = p.padding
    if p.layer == "subm":
        spans = [
            (t // 2 * d, (t - 1 - t // 2) * d) for t, d in zip(p.taps, p.dilation, strict=True)
        ]
        pairs = tuple(spans)
    grid = functional.pad(grid, [s for pair in reversed(pairs) for s in pair])
    function = getattr(functional, f"conv{p.rank}d")
    return function(grid, filter, None, p.stride, 0, p.dilation, p.groups)


def test_places_of_views_are_those_of_the_definition() -> None:
    for seed in range(0, 600, 5):
        p = draw_view(seed, "tiny")
        for name in "abd":
            operand = getattr(p, name)
            index = None
            if operand.index:
                generator = torch.Generator().manual_seed(seed)
                rows = operand.memory[0]
                index = torch.randint(-1, rows, (operand.index,), generator=generator).int()
            layout = operand.layout("A", p.letters, index)
            numbers = range(len(operand.modes))
            place, there = operand.addresses(index, *numbers)
            axes = torch.meshgrid(
                *(torch.arange(operand.extent(i)) for i in numbers), indexing="ij"
            )
            offset, valid = locate(layout, *axes)
            assert torch.equal(torch.as_tensor(valid).expand(there.shape), there)
            assert torch.equal(torch.as_tensor(offset).expand(place.shape) * there, place)


def test_a_view_without_letters_is_the_same_function() -> None:
    p = draw_view(0, "tiny")
    assert draw_view(0, "tiny").a == replace(p, letters=not p.letters).a
