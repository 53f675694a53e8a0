"""Names that programs import from MinkowskiEngine's inner files and from its compiled module."""

from __future__ import annotations

import importlib
import sys
from types import ModuleType

import pytest
import torch

import layoutconv.compat.MinkowskiEngine as ME  # noqa: N817


def test_a_layer_of_a_program_from_what_the_compiled_module_has():
    """Programs derive layers of their own from the functions, with modes and keys from ``_C``."""
    with ME.install():
        from MinkowskiEngine.MinkowskiSparseTensor import _get_coordinate_map_key
        from MinkowskiEngineBackend._C import ConvolutionMode, PoolingMode, RegionType

        class Standardised(ME.MinkowskiConvolution):
            def forward(self, input, coordinates=None):
                kernel = self.kernel - self.kernel.mean()
                key = _get_coordinate_map_key(input, coordinates)
                features = ME.MinkowskiConvolutionFunction.apply(
                    input.F, kernel, self.kernel_generator, ConvolutionMode.DIRECT_GEMM,
                    input.coordinate_map_key, key, input.coordinate_manager,
                )  # fmt: skip
                return ME.SparseTensor(
                    features, coordinate_map_key=key, coordinate_manager=input.coordinate_manager
                )

    coords = torch.tensor([[0, 0, 3], [0, 1, 3], [0, 4, 0], [1, 2, 2]]).int()
    x = ME.SparseTensor(torch.randn(4, 2, dtype=torch.float64), coords)
    own = Standardised(2, 3, 3, 2, dimension=2, convolution_mode=ConvolutionMode.DEFAULT).double()
    plain = ME.MinkowskiConvolution(2, 3, 3, 2, dimension=2).double()
    plain.kernel = torch.nn.Parameter(own.kernel.detach() - own.kernel.detach().mean())
    expected = plain(x)
    key = expected.coordinate_map_key
    for coordinates, step in ((None, 2), (expected, 2), (key, 2), (expected.C, 1)):
        found = own(x, coordinates)
        assert found.tensor_stride == [step, step]
        torch.testing.assert_close(found.F, expected.F)
    assert PoolingMode is ME.PoolingMode
    assert RegionType is ME.RegionType


def test_rows_of_a_tensor_in_the_cells_of_a_coarser():
    with ME.install():
        get = importlib.import_module("MinkowskiEngine.utils.coords").get_coords_map
    x = ME.SparseTensor(torch.ones(4, 1), torch.tensor([[0, 5], [0, -1], [1, 4], [0, 4]]).int())
    y = ME.MinkowskiSumPooling(2, 2, dimension=1)(x)
    rows, cells = (found.long() for found in get(x, y))
    assert sorted(rows.tolist()) == [0, 1, 2, 3]
    assert torch.equal(x.C[rows, 1] // 2 * 2, y.C[cells, 1])
    with pytest.raises(ValueError, match="`y`: expected a tensor with the same coordinate_manager"):
        get(x, ME.SparseTensor(torch.ones(1, 1), torch.zeros(1, 2).int()))


def test_gradients_of_a_function_are_checked():
    with ME.install():
        gradcheck = importlib.import_module("MinkowskiEngine.utils.gradcheck").gradcheck
    x = torch.randn(3, dtype=torch.float64, requires_grad=True)

    class Wrong(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return 2 * x

        @staticmethod
        def backward(ctx, grad):
            return grad

    assert not gradcheck(Wrong, (x,), raise_exception=False, check_sparse_nnz=True)


def test_another_compiled_module_is_left_alone(monkeypatch):
    other = ModuleType("MinkowskiEngineBackend")
    monkeypatch.setitem(sys.modules, "MinkowskiEngineBackend", other)
    with ME.install():
        assert sys.modules["MinkowskiEngineBackend"] is other
        assert "MinkowskiEngineBackend._C" not in sys.modules
        assert importlib.import_module("MinkowskiNetwork").MinkowskiNetwork is ME.MinkowskiNetwork
    assert "MinkowskiNetwork" not in sys.modules


def test_diagnostics_name_the_versions(capsys):
    ME.print_diagnostics()
    assert torch.__version__ in capsys.readouterr().out
