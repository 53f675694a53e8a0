"""MinkowskiEngine's autograd functions and names beside its layers."""

from __future__ import annotations

import importlib
import sys
from types import ModuleType

import numpy as np
import pytest
import torch

import layoutconv.compat.MinkowskiEngine as ME  # noqa: N817
from layoutconv.compat.MinkowskiEngine.sparse_matrix_functions import spmm_average
from layoutconv.errors import ArgumentError, ArgumentTypeError

DOUBLE = torch.float64


def tensor(rows=40, channels=3, seed=0):
    random = torch.Generator().manual_seed(seed)
    cells = torch.randint(-5, 5, (rows, 2), generator=random)
    image = torch.arange(rows)[:, None] % 2
    features = torch.randn(rows, channels, dtype=DOUBLE, generator=random)
    return ME.SparseTensor(features, torch.cat([image, cells], 1).int())


def at(x, *others):
    return x.coordinate_map_key, *others, x.coordinate_manager


KINDS = {
    "convolution": (ME.MinkowskiConvolutionFunction, ME.MinkowskiConvolution, {}),
    "expanded": (
        ME.MinkowskiConvolutionFunction,
        ME.MinkowskiConvolution,
        {"expand_coordinates": True},
    ),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("given", [False, True])
def test_convolutions_as_functions(kind, given):
    function, layer, options = KINDS[kind]
    x = tensor()
    conv = layer(3, 4, kernel_size=3, stride=2, dimension=2, **options).double()
    y = conv(x)
    key = y.coordinate_map_key if given else ME.CoordinateMapKey(3)
    found = function.apply(
        x.F, conv.kernel, conv.kernel_generator, conv.convolution_mode, *at(x, key)
    )
    assert torch.equal(found, y.F)
    made = ME.SparseTensor(found, coordinate_map_key=key, coordinate_manager=x.coordinate_manager)
    assert torch.equal(made.C, y.C)
    up = ME.MinkowskiConvolutionTranspose(4, 3, kernel_size=2, stride=2, dimension=2).double()
    if not options:
        back = ME.MinkowskiConvolutionTransposeFunction.apply(
            y.F, up.kernel, up.kernel_generator, None, *at(y, x.coordinate_map_key)
        )
        assert torch.equal(back, up(y).F)


@pytest.mark.parametrize("name", ["Sum", "Avg", "Max"])
def test_poolings_as_functions(name):
    x = tensor()
    pool = getattr(ME, f"Minkowski{name}Pooling")(kernel_size=2, stride=2, dimension=2)
    y, key = pool(x), ME.CoordinateMapKey(3)
    function = ME.MinkowskiLocalPoolingFunction
    of = x.F, pool.pooling_mode, pool.kernel_generator
    assert torch.equal(function.apply(*of, *at(x, key)), y.F)
    assert key.get_tensor_stride() == [2, 2]
    with pytest.raises(ArgumentError, match="pooling_mode"):
        function.apply(
            x.F, ME.PoolingMode.GLOBAL_SUM_POOLING_DEFAULT, pool.kernel_generator, *at(x, None)
        )
    back = ME.MinkowskiPoolingTranspose(kernel_size=2, stride=2, dimension=2)
    of = y.F, back.pooling_mode, back.kernel_generator
    function = ME.MinkowskiLocalPoolingTransposeFunction
    assert torch.equal(function.apply(*of, *at(y, x.coordinate_map_key)), back(y).F)
    whole = getattr(ME, f"MinkowskiGlobal{name}Pooling")()
    row = whole(x)
    assert torch.equal(
        ME.MinkowskiGlobalPoolingFunction.apply(x.F, whole.pooling_mode, *at(x, None)), row.F
    )
    for layer in (ME.MinkowskiBroadcastAddition(), ME.MinkowskiBroadcastMultiplication()):
        keys = x.coordinate_map_key, row.coordinate_map_key, x.coordinate_manager
        found = ME.MinkowskiBroadcastFunction.apply(x.F, row.F, layer.operation_type, *keys)
        assert torch.equal(found, layer(x, row).F)


def test_the_others_as_functions():
    x = tensor()
    mask = x.F[:, 0] > 0
    key = ME.CoordinateMapKey(3)
    pruned = ME.MinkowskiPruningFunction.apply(x.F, mask, *at(x, key))
    assert torch.equal(pruned, x.F[mask])
    assert torch.equal(x.coordinate_manager.get_coordinates(key), x.C[mask])
    both = [x.coordinate_map_key, key]
    key = ME.CoordinateMapKey(3)
    union = ME.MinkowskiUnionFunction.apply(both, key, x.coordinate_manager, x.F, pruned)
    rows = [x.C.tolist().index(cell) for cell in x.coordinate_manager.get_coordinates(key).tolist()]
    assert torch.equal(union, (x.F * (1 + mask[:, None].double()))[rows])
    assert len(union) == len(x)
    points = x.C.double() + torch.tensor([0, 0.25, 0.5], dtype=DOUBLE)
    y, rows, to, weights = ME.MinkowskiInterpolationFunction.apply(x.F, points, *at(x))
    assert torch.equal(y, x.features_at_coordinates(points))
    sums = torch.zeros_like(y).index_add(0, to.long(), x.F[rows.long()] * weights[:, None])
    assert torch.allclose(sums, y)
    normed = ME.MinkowskiInstanceNormFunction.apply(x.F, *at(x, None))
    assert torch.equal(normed, ME.MinkowskiInstanceNorm(3).double()(x).F)


def test_global_pooling_of_a_field_is_over_its_points():
    random = torch.Generator().manual_seed(0)
    points = torch.rand(9, 3, generator=random) * 2 - 1  # several to a voxel
    points[:, 0] = torch.arange(9) % 2
    features = torch.randn(9, 4, generator=random)
    field = ME.TensorField(features, points)
    for name, expected in (
        ("Sum", [features[i::2].sum(0) for i in (0, 1)]),
        ("Avg", [features[i::2].mean(0) for i in (0, 1)]),
        ("Max", [features[i::2].amax(0) for i in (0, 1)]),
    ):
        layer = getattr(ME, f"MinkowskiGlobal{name}Pooling")()
        y = layer(field)
        assert torch.allclose(y.F, torch.stack(expected))
        assert y.C.tolist() == [[0, 0, 0], [1, 0, 0]]
        key, manager = field.coordinate_field_map_key, field.coordinate_manager
        apply = ME.MinkowskiGlobalPoolingFunction.apply
        assert torch.equal(apply(features, layer.pooling_mode, key, None, manager), y.F)
    assert len(field.sparse()) < 9  # its manager goes on


def test_a_field_from_the_key_of_another():
    points = torch.tensor([[0, 0.5, 0.25], [1, -3.5, 2.0]])
    field = ME.TensorField(torch.ones(2, 1), points)
    x = field.sparse()
    other = ME.TensorField(
        torch.tensor([[3.0], [5.0]]),
        coordinate_field_map_key=field.coordinate_field_map_key,
        coordinate_manager=field.coordinate_manager,
    )
    assert other.C is field.C
    assert x.slice(other).F.T.tolist() == [[1.0, 1.0]]
    assert (field + other).F.T.tolist() == [[4.0, 6.0]]
    with pytest.raises(ArgumentError, match=r"\(2, C\)"):
        ME.TensorField(
            torch.ones(3, 1),
            coordinate_field_map_key=field.coordinate_field_map_key,
            coordinate_manager=field.coordinate_manager,
        )


def test_sparse_matrices():
    random = torch.Generator().manual_seed(0)
    rows, cols = (torch.randint(0, n, (20,), generator=random) for n in (6, 5))
    vals = torch.randn(20, dtype=DOUBLE, generator=random).requires_grad_()
    mat = torch.randn(5, 3, dtype=DOUBLE, generator=random).requires_grad_()
    dense = torch.zeros(6, 5, dtype=DOUBLE).index_put((rows, cols), vals, accumulate=True)
    assert torch.allclose(ME.spmm(rows, cols, vals, (6, 5), mat), dense @ mat)
    apply = ME.MinkowskiSPMMFunction.apply
    assert torch.autograd.gradcheck(
        lambda v, m: apply(rows.int(), cols.int(), v, (6, 5), m), (vals, mat)
    )
    ones = torch.zeros(6, 5, dtype=DOUBLE).index_put(
        (rows, cols), vals.detach() * 0 + 1, accumulate=True
    )
    mean = ones / ones.sum(1, keepdim=True).clamp(min=1)
    assert torch.allclose(
        ME.MinkowskiSPMMAverageFunction.apply(rows, cols, (6, 5), mat), mean @ mat
    )
    _, entries, weights = spmm_average(rows, cols, (6, 5), mat)
    assert torch.allclose(torch.sparse_coo_tensor(entries, weights, (6, 5)).to_dense(), mean)
    with pytest.raises(ArgumentError, match="as many"):
        ME.spmm(rows[1:], cols, vals, (6, 5), mat)
    top = ME.MinkowskiDirectMaxPoolingFunction.apply(rows % 5, cols, mat, 7)
    for row in range(7):
        of = mat[(rows % 5)[cols == row]]
        assert torch.equal(top[row], of.amax(0) if len(of) else torch.zeros(3, dtype=DOUBLE))
    assert torch.autograd.gradcheck(
        lambda m: ME.MinkowskiDirectMaxPoolingFunction.apply(rows % 5, cols, m, 7), (mat,)
    )


def test_losses_take_features():
    x, target = tensor(), torch.arange(40) % 3
    loss = ME.MinkowskiFunctional.cross_entropy(x, target[: len(x)])
    assert torch.equal(loss, torch.nn.functional.cross_entropy(x.F, target[: len(x)]))
    y = ME.MinkowskiFunctional.linear(x, torch.ones(2, 3, dtype=DOUBLE))
    assert y.F.shape == (len(x), 2)
    assert torch.equal(y.C, x.C)


def test_quantization_with_labels_keeps_arrays():
    """As there: arrays with labels, tensors without; loaders call ``torch.from_numpy`` on one."""
    cells = np.array([[0, 0], [0, 0], [0, 1]], np.int32)
    labels = np.array([1, 2, 3], np.int32)
    quantize = ME.utils.sparse_quantize
    found = quantize(cells, labels=labels, return_index=True, return_inverse=True)
    assert all(isinstance(array, np.ndarray) for array in found)
    assert [array.tolist() for array in found] == [[[0, 0], [0, 1]], [-100, 3], [0, 2], [0, 0, 1]]
    tensors = quantize(torch.from_numpy(cells), labels=torch.from_numpy(labels))
    assert all(isinstance(array, torch.Tensor) for array in tensors)
    assert isinstance(quantize(cells), torch.Tensor)


def test_cells_that_a_coarse_stride_leaves():
    """Strides of a network of completion: 64 of three modes are more taps than a map has."""
    cells = torch.randint(-300, 300, (40, 4), generator=torch.Generator().manual_seed(0)).int()
    cells[:, 0] %= 2
    x = ME.SparseTensor(torch.ones(40, 1), cells)
    manager, key = x.coordinate_manager, x.coordinate_map_key
    coarse = manager.stride(key, 64)
    assert coarse.get_tensor_stride() == [64, 64, 64]
    cells = manager.get_coordinates(coarse)
    rows, place = manager.stride_map(key, coarse)
    assert rows.tolist() == list(range(len(x)))
    expected = torch.cat([x.C[:, :1], x.C[:, 1:].div(64, rounding_mode="floor") * 64], 1)
    assert torch.equal(cells[place.long()], expected)


def test_pairs_of_a_pooling_without_overlap():
    """A cell is in one window, and once in the map, whatever tap it is at."""
    x = tensor()
    y = ME.MinkowskiMaxPooling(3, 3, dimension=2)(x)
    manager, ends = x.coordinate_manager, (x.coordinate_map_key, y.coordinate_map_key)
    found = manager.kernel_map(*ends, 3, 3, is_pool=True)
    back = manager.kernel_map(*ends[::-1], 3, 3, is_transpose=True, is_pool=True)
    assert list(found) == list(back) == [0]
    assert torch.equal(found[0][0], torch.arange(len(x), dtype=torch.int32))
    windows = torch.cat([x.C[:, :1], x.C[:, 1:].div(3, rounding_mode="floor") * 3], 1)
    assert torch.equal(windows, y.C[found[0][1].long()])
    assert torch.equal(back[0], found[0].flip(0))
    assert len(manager.kernel_map(*ends, 3, 2, is_pool=True)) > 1  # windows that overlap


def test_a_manager_takes_its_documented_keywords():
    x = tensor()
    manager, key = x.coordinate_manager, x.coordinate_map_key
    coarse = manager.stride(coordinate_map_key=key, stride=2)
    assert manager.size(coordinate_map_key=key) == len(x)
    found = manager.get_coordinates(coords_key_or_tensor_strides=coarse)
    floored = torch.cat([x.C[:, :1], x.C[:, 1:].div(2, rounding_mode="floor") * 2], 1)
    assert torch.equal(found, torch.unique(floored, dim=0))
    field = ME.TensorField(x.F, x.C.double())
    points = field.coordinate_manager.get_coordinate_field(
        coords_key_or_tensor_strides=field.coordinate_field_map_key
    )
    assert torch.equal(points, field.C)


def test_modules_under_the_names_of_their_files():
    names = "ChannelwiseConvolution", "Interpolation", "Network", "Pruning", "Union"
    with ME.install():
        for name in names:
            module = importlib.import_module(f"MinkowskiEngine.Minkowski{name}")
            assert getattr(module, f"Minkowski{name}") is getattr(ME, f"Minkowski{name}")


def test_modules_without_the_name_of_the_package(monkeypatch):
    """MinkowskiEngine puts its folder on the path, and programs import its files by themselves."""
    other = ModuleType("MinkowskiOps")
    monkeypatch.setitem(sys.modules, "MinkowskiOps", other)
    with ME.install():
        import MinkowskiFunctional as MF  # noqa: N817
        from MinkowskiNonlinearity import MinkowskiModuleBase, MinkowskiNonlinearityBase
        from MinkowskiPruning import MinkowskiPruning

        assert MF is ME.MinkowskiFunctional
        assert MinkowskiPruning is ME.MinkowskiPruning
        assert MinkowskiNonlinearityBase is ME.MinkowskiNonlinearityBase
        assert MinkowskiModuleBase is ME.MinkowskiModuleBase
        assert sys.modules["MinkowskiOps"] is other, "a program's own module stays"
        assert not {"utils", "modules", "system"} & {
            name for name, module in sys.modules.items() if "compat.Minkowski" in module.__name__
        }
    assert "MinkowskiFunctional" not in sys.modules
    assert sys.modules["MinkowskiOps"] is other


def test_a_module_of_the_program_is_found_before(monkeypatch, tmp_path):
    """MinkowskiEngine's folder is the last of the path: nobody need have imported it before."""
    (tmp_path / "MinkowskiOps.py").write_text("whose = 'the program'")
    monkeypatch.syspath_prepend(tmp_path)
    with ME.install():
        import MinkowskiOps

        assert MinkowskiOps.whose == "the program"
        from MinkowskiEngine.MinkowskiOps import cat

        assert cat is ME.cat
    del sys.modules["MinkowskiOps"]


def test_voxels_of_the_points_of_a_field():
    random = torch.Generator().manual_seed(3)
    places = torch.rand(60, 2, dtype=DOUBLE, generator=random) * 8 - 4
    image = torch.arange(60, dtype=DOUBLE)[:, None] % 2
    features = torch.randn(60, 3, dtype=DOUBLE, generator=random)
    field = ME.TensorField(features, torch.cat([image, places], 1))
    manager, x = field.coordinate_manager, field.sparse()
    assert field.coordinate_key == field.coordinate_field_map_key
    voxels, points = manager.field_to_sparse_map(field.coordinate_key, x.coordinate_key)
    assert torch.equal(voxels.long(), field.inverse_mapping(x.coordinate_key))
    assert voxels.dtype == points.dtype == torch.int32
    assert points.tolist() == list(range(60))
    size = torch.Size([len(x), 60])
    mean = ME.MinkowskiSPMMAverageFunction.apply(voxels, points, size, features)
    assert torch.allclose(mean, x.F)
    few, _ = manager.insert_and_map(torch.tensor([[0, 0, 0], [1, -2, 2]]), 2)
    voxels, points = manager.field_to_sparse_map(field.coordinate_key, few)
    low = torch.cat([image, (places / 2).floor() * 2], 1).int()
    wanted = (low[:, None] == manager.get_coordinates(few)).all(2).nonzero()
    assert len(points)
    assert torch.equal(torch.stack([points, voxels], 1), wanted.int())
    with pytest.raises(ArgumentError, match=r"`sparse_tensor_map_key`: .* none for point"):
        field.inverse_mapping(few)
    with pytest.raises(ArgumentError, match="`other`: expected a tensor at the same coordinates"):
        field += ME.TensorField(features, field.C + 1, coordinate_manager=manager)


@pytest.mark.parametrize("cross", [False, True])
def test_a_kernel_of_a_generator_is_that_of_its_layer(cross):
    kind = ME.RegionType.HYPER_CROSS if cross else ME.RegionType.HYPER_CUBE
    generator = ME.KernelGenerator(3, 2, region_type=kind, dimension=2)
    x, net = tensor(), ME.MinkowskiConvolution(3, 4, kernel_generator=generator, dimension=2)
    y, kernel = net.double()(x), net.kernel
    region_type, offset, volume = generator.get_kernel(x.tensor_stride, False)
    assert volume == generator.kernel_volume == len(kernel)
    pairs = x.coordinate_manager.kernel_map(
        x.coordinate_key, y.coordinate_key, generator.kernel_stride, generator.kernel_size,
        generator.kernel_dilation, region_type=region_type, region_offset=offset,
    )  # fmt: skip
    total = torch.zeros_like(y.F)
    for tap, (inputs, outputs) in pairs.items():
        total = total.index_add(0, outputs.long(), x.F[inputs.long()] @ kernel[tap])
    assert torch.allclose(total, y.F)
    with pytest.raises(ArgumentError, match="`tensor_stride`"):
        generator.get_kernel([1, 1, 1], False)


@pytest.mark.parametrize(("size", "expands"), [(2, True), ((3, 2), True), (2, False)])
def test_cells_that_a_voxel_grows_are_side_by_side(size, expands):
    """Programs choose the best of each eight rows: they are one voxel's, a row per tap."""
    x = tensor()
    options = {"kernel_size": size, "stride": size, "dimension": 2}
    if expands:
        net = ME.MinkowskiConvolutionTranspose(3, 4, expand_coordinates=True, **options).double()
    else:
        net = ME.MinkowskiGenerativeConvolutionTranspose(3, 4, **options).double()
    coarse = ME.SparseTensor(x.F, x.C * torch.tensor([1, 6, 6]).int(), tensor_stride=6)
    y = net(coarse)
    steps = [6 // extent for extent in net.kernel_generator.kernel_stride]
    taps = torch.tensor(net.kernel_generator.offsets()) * torch.tensor(steps)
    assert y.tensor_stride == steps
    assert torch.equal(y.C[:, 1:], (coarse.C[:, None, 1:] + taps).flatten(0, 1))
    assert torch.equal(y.C[:, 0], coarse.C[:, 0].repeat_interleave(len(taps)))
    leaf = x.F.clone().requires_grad_()
    wanted = torch.einsum("nc,tck->ntk", leaf, net.kernel).flatten(0, 1)
    assert torch.allclose(y.F, wanted)
    weight = torch.randn_like(y.F)
    found = torch.autograd.grad((y.F * weight).sum(), net.kernel)[0]
    assert torch.allclose(found, torch.autograd.grad((wanted * weight).sum(), net.kernel)[0])
    down = ME.MinkowskiConvolution(4, 3, **options).double()
    back = down(y, coarse)
    sums = torch.einsum("ntk,tkc->nc", y.F.view(-1, len(taps), 4), down.kernel)
    assert torch.allclose(back.F, sums)
    if size == 2:  # windows of an odd pooling are not centred, its regions are, as there
        pool = ME.MinkowskiPoolingTranspose(expand_coordinates=True, **options)
        assert torch.equal(pool(coarse).F, x.F.repeat_interleave(len(taps), 0))


def test_regions_that_overlap_grow_each_cell_once():
    x = tensor()
    options = {"kernel_size": 3, "stride": 2, "dimension": 2}
    y = ME.MinkowskiGenerativeConvolutionTranspose(3, 4, **options).double()(
        ME.SparseTensor(x.F, x.C * torch.tensor([1, 2, 2]).int(), tensor_stride=2)
    )
    assert torch.equal(y.C, torch.unique(y.C, dim=0))


def test_names_that_projects_look_for():
    """A fork's name of a depthwise layer, and pybind11's table of an enumeration."""
    assert ME.MinkowskiDepthwiseConvolution is ME.MinkowskiChannelwiseConvolution
    entries = getattr(ME.RegionType, "__entries")
    assert {name: found[0] for name, found in entries.items()} == dict(ME.RegionType.__members__)


WRONG = {
    "nothing": lambda x: None,
    "torch": lambda x: x.F,
    "text": lambda x: "x",
    "layoutconv": lambda x: x.to_layoutconv(),
}
ALONE = {
    "MinkowskiGlobalPooling": (),
    "MinkowskiInstanceNorm": (4,),
    "MinkowskiStableInstanceNorm": (4,),
    "MinkowskiBatchNorm": (4,),
    "MinkowskiReLU": (),
    "MinkowskiToFeature": (),
    "MinkowskiToDenseTensor": (),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_layers_name_what_is_none_of_their_tensors(wrong):
    coords = torch.tensor([[0, 1, 1], [0, 2, 1]]).int()
    x = ME.SparseTensor(torch.ones(2, 4), coords)
    other = WRONG[wrong](x)
    for name, given in ALONE.items():
        with pytest.raises(ArgumentTypeError, match=r"`(input|x)`: expected a SparseTensor"):
            getattr(ME, name)(*given)(other)
    for layer in (ME.MinkowskiBroadcast(), ME.MinkowskiBroadcastMultiplication()):
        with pytest.raises(ArgumentTypeError, match="`input_glob`: expected a SparseTensor"):
            layer(x, other)
        with pytest.raises(ArgumentTypeError, match="`input`: expected a SparseTensor"):
            layer(other, x)
    for function in (ME.cat, ME.sum, ME.mean, ME.var):
        with pytest.raises(ArgumentTypeError, match="`other`: expected a SparseTensor or a Tenso"):
            function(x, other)
    with pytest.raises(ArgumentTypeError, match="`inputs`: expected a SparseTensor"):
        ME.MinkowskiUnion()(x, other)
    mask = torch.ones(2, dtype=torch.bool)
    with pytest.raises(ArgumentTypeError, match="`input`: expected a SparseTensor"):
        ME.MinkowskiPruning()(other, mask)
    with pytest.raises(ArgumentTypeError, match="`input`: expected a SparseTensor"):
        ME.MinkowskiInterpolation()(other, torch.ones(1, 3))
    if wrong != "torch":
        with pytest.raises(ArgumentTypeError, match="`mask`: expected a torch tensor"):
            ME.MinkowskiPruning()(x, other)
        with pytest.raises(ArgumentTypeError, match="`tfield`: expected a torch tensor"):
            ME.MinkowskiInterpolation()(x, other)
    for function in (ME.to_sparse, ME.to_sparse_all):
        with pytest.raises(ArgumentTypeError, match=r"`: expected a torch tensor \(N, C, X"):
            function(other)
