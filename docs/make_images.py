"""The pictures of the pages: ``python docs/make_images.py`` writes images/{tutorial,gallery}/*.svg.

Those of trained networks, images/gallery/*.png, are what their examples wrote, scaled down.
"""

from __future__ import annotations

import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import numpy as np
import torch

from layoutconv import (
    ComposedLayout,
    E,
    Layout,
    Swizzle,
    blocked_product,
    complement,
    copy_atom,
    make_layout,
    make_layout_tv,
    make_tiled_copy_tv,
    make_tiled_mma,
    mfma_atom,
    mma_atom,
    raked_product,
    smem_atom,
    tma_atom,
    universal_copy,
    zipped_divide,
)
from layoutconv.conv import ConvProblem, dgrad_views, fprop_view, gather_fprop_view
from layoutconv.drawing import Figure, draw
from layoutconv.sparse import (
    Coordinates,
    dense_index,
    kernel_map_view,
    strided_map,
    submanifold_map,
)

FOLDER = Path(__file__).parent / "images" / "tutorial"
GALLERY = FOLDER.parent / "gallery"
EXAMPLES = Path(__file__).parents[1] / "examples"


def pictures() -> dict[str, Figure]:
    """The figures of the pages by the names of their files."""
    rows, tile = Layout((4, 8), (8, 1)), Layout(4, 2)
    chunks = Layout((8, 8), (8, 1))  # 8 rows of 8 chunks of 16 bytes
    strip = Layout((6, 3), (E(0), E(0)))
    problem = ConvProblem((1, 5, 5, 1), (1, 3, 3), padding=1, stride=2)
    dilated = ConvProblem((1, 6, 6, 1), (1, 3, 3), padding=2, stride=2, dilation=2)
    return {
        "row-major": draw(rows),
        "column-major": draw(Layout((4, 8), (1, 4))),
        "row-padded": draw(Layout((4, 8), (9, 1))),
        "nested": draw(Layout(((2, 2), (4, 2)), ((1, 8), (2, 16)))),
        "tiles": draw(zipped_divide(rows, (2, 4))),
        "complement": draw(make_layout(tile, complement(tile, 24))),
        "banks": draw(chunks, element_bits=128),
        "swizzled-banks": draw(ComposedLayout(Swizzle(3, 0, 3), 0, chunks), element_bits=128),
        "thread-banks": draw(
            Layout((32, 2), (1, 32)),
            tv=ComposedLayout(Swizzle(3, 0, 3), 0, chunks),
            element_bits=32,
        ),
        "mma": draw(mma_atom("m16n8k8.f16")),
        "quad-pair": draw(mma_atom("m8n8k4.f16.nt")),
        "ldmatrix": draw(copy_atom("ldmatrix.x1.trans")),
        "tensor-memory": draw(copy_atom("tcgen05.ld.16x64b.x2")),
        "tma-box": draw(tma_atom((16, 8), 16, swizzle="SW32")),
        **threads(),
        "im2col-strip": draw(strip),
        "im2col-padded": draw(ComposedLayout(Layout((6,), (10,)), (-1,), strip)),
        "im2col": draw(fprop_view(problem), row=4),
        "im2col-dilated": draw(fprop_view(dilated), row=4),
        "gathered": draw(
            gather_fprop_view(ConvProblem((1, 4, 4, 1), (1, 3, 3), padding=1), CELLS), row=5
        ),
        "kernel-map": draw(kernel_map_view(KERNEL_MAP, 2, 8, kernel_size=(3,)), row=2),
        **convolutions(),
        **clouds(),
    }


def threads() -> dict[str, Figure]:
    """Blocks that are repeated, and what each thread of a tile holds."""
    block, copies = Layout((2, 3), (3, 1)), Layout((2, 3))
    tiler, tv = make_layout_tv(Layout((2, 4), (4, 1)), Layout((2, 2), (2, 1)))
    pairs = make_tiled_copy_tv(universal_copy(2), Layout((4, 4), (4, 1)), Layout((1, 4)))
    return {
        "blocked": draw(blocked_product(block, copies)),
        "raked": draw(raked_product(block, copies)),
        "smem-atom": draw(smem_atom("K_SW32", 16)),
        "mfma": draw(mfma_atom("mfma.16x16x4.f32")),
        "tiled-copy": draw(pairs),
        "tiled-mma": draw(make_tiled_mma(mma_atom("m8n8k4.f64"), (2, 1, 1))),
        "partition": draw(tv, tv=tiler),
    }


def convolutions() -> dict[str, Figure]:
    """A row of A as it is read by each kind of view."""
    padded = ConvProblem((1, 4, 4, 1), (1, 3, 3), padding=1)
    strided = ConvProblem((1, 5, 5, 1), (1, 3, 3), padding=1, stride=2)
    (dgrad,) = dgrad_views(padded)
    *_, both_odd = dgrad_views(strided)
    backwards = np.arange(16, dtype=np.int32)[::-1].copy()
    three = submanifold_map(Coordinates(THREE, (4, 4), 1), 3)
    return {
        "conv-im2col": draw(fprop_view(ConvProblem((1, 5, 5, 1), (1, 3, 3))), row=4),
        "conv-padded": draw(fprop_view(padded), row=0),
        "conv-dgrad": draw(dgrad, row=4),
        "conv-dgrad-strided": draw(both_odd, row=0),
        "conv-gathered": draw(gather_fprop_view(padded, backwards), row=5),
        "conv-kernel-map": draw(kernel_map_view(three.index, 1, 1, kernel_size=(3, 3)), row=1),
    }


def clouds() -> dict[str, Figure]:
    """Six cells of a grid, and the matrices that kernel maps of theirs stand for."""
    cells = Coordinates(CLOUD, (4, 6), 1)
    grid = ConvProblem((1, 4, 6, 1), (1, 3, 3), padding=1)
    submanifold = submanifold_map(cells, 3)
    strided = strided_map(cells, 3, stride=2, padding=1)

    def a(index: torch.Tensor, row: int) -> Figure:
        return draw(kernel_map_view(index, 1, 1, kernel_size=(3, 3), in_rows=6), row=row)

    whole = gather_fprop_view(grid, dense_index(cells).flatten().numpy(), in_rows=6)
    return {
        "cloud-grid": draw(whole, row=8),
        "cloud-submanifold": a(submanifold.index, row=3),
        "cloud-strided": a(strided.index, row=1),
        "cloud-sorted": a(submanifold.sorted[0], row=1),
    }


# Which row holds a cell of a 4 x 4 grid, and which row feeds a tap of a row.
CELLS = np.array([-1, 0, 1, -1, 2, 3, -1, 4, -1, -1, 5, 6, 7, -1, 8, -1], dtype=np.int32)
CLOUD = torch.tensor(
    [[0, 2, 4], [0, 0, 1], [0, 0, 2], [0, 1, 2], [0, 1, 3], [0, 3, 4]], dtype=torch.int32
)
THREE = torch.tensor([[0, 1, 1], [0, 1, 2], [0, 2, 2]], dtype=torch.int32)
KERNEL_MAP = torch.tensor([[-1, 0, 1], [0, 1, -1], [-1, 2, 3], [2, 3, -1]], dtype=torch.int32)


def gallery() -> dict[str, Figure]:
    """The figures of the examples by their names: of those that have a ``picture``."""
    found = {}
    sys.path.insert(0, str(EXAMPLES))  # some import their neighbours
    for path in sorted(EXAMPLES.glob("*.py")):
        spec = spec_from_file_location(f"picture_of_{path.stem}", path)
        assert spec is not None
        assert spec.loader is not None
        module = module_from_spec(spec)
        sys.modules[spec.name] = module  # dataclasses look their module up
        spec.loader.exec_module(module)
        if hasattr(module, "picture"):
            found[path.stem] = module.picture()
    return found


if __name__ == "__main__":
    for folder, figures in ((FOLDER, pictures()), (GALLERY, gallery())):
        folder.mkdir(parents=True, exist_ok=True)
        for name, figure in figures.items():
            figure.save(folder / f"{name}.svg")
