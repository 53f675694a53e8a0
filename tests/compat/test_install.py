"""``install``: spconv's names for programs that are not edited, and what is said of absent ones."""

from __future__ import annotations

import importlib
import inspect
import textwrap
from pkgutil import iter_modules
from typing import Any

import pytest
import torch

import layoutconv.compat.spconv
from layoutconv.compat.spconv.absent import MODULES, MOVED, REASONS
from layoutconv.compat.spconv.pytorch.core import SparseConvTensor, scatter_nd
from layoutconv.compat.spconv.pytorch.hash import HashTable
from layoutconv.errors import ArgumentError

from ..warm_process import run_python
from .reference import needs_spconv, reference


def run(program: str) -> str:
    """Run a program in a process of its own, and return what it prints."""
    found = run_python(["-c", textwrap.dedent(program)])
    assert not found.returncode, found.stderr
    return found.stdout


def test_a_program_that_imports_spconv() -> None:
    """In the ways that frameworks do it; and afterwards as if nothing had been."""
    printed = run("""
        import sys
        import layoutconv.compat.spconv as ours
        path, finders = set(sys.modules), list(sys.meta_path)
        handle = ours.install()
        assert ours.install() is handle
        import spconv
        import spconv.pytorch as sp
        import spconv.algo, spconv.constants, spconv.core, spconv.tools, spconv.utils
        from spconv.core import AlgoHint, ConvAlgo
        from spconv.pytorch import cppcore, functional, ops
        from spconv.pytorch.core import ImplicitGemmIndiceData, scatter_nd
        from spconv.pytorch.hash import HashTable
        from spconv.pytorch.modules import SparseModule
        from spconv.pytorch.spatial import RemoveDuplicate
        from spconv.pytorch.utils import PointToVoxel
        from spconv.utils import Point2VoxelCPU3d, VoxelGeneratorV2
        import spconv.cppconstants
        assert float(spconv.__version__[2:]) >= 2.2
        assert sp is ours.pytorch and spconv is ours and sp.constants is spconv.constants
        assert SparseModule is sp.modules.SparseModule
        assert sp.SubMConv3d.__module__.startswith("layoutconv.")
        spconv.constants.SPCONV_USE_DIRECT_TABLE = False
        handle.undo()
        assert not [name for name in sys.modules if name.split(".")[0] == "spconv"]
        assert sys.meta_path == finders
        with ours.install() as again:
            assert again is not handle
            import spconv
        assert "spconv" not in sys.modules
        handle.undo()  # nothing is left to be undone
        print("done")
    """)
    assert printed == "done\n"


@pytest.mark.usefixtures("spconv_not_imported")
def test_what_is_not_there_says_why() -> None:
    with layoutconv.compat.spconv.install():
        for statement, message in (
            (
                "from spconv.pytorch.ops import get_indice_pairs",
                "get_indice_pairs.*submanifold_map",
            ),
            ("from spconv.utils import rbbox_iou", "rbbox_iou.*torchvision"),
            ("from spconv.algo import GEMM", "GEMM.*kernels of its own"),
            ("import spconv.core_cc.csrc", "spconv.core_cc.*kernels"),
            ("from spconv.pytorch.cppcore import torch_tensor_to_tv", "cppcore.*cumm"),
            ("import spconv.pytorch.quantization.fake_q", "fake_q.*layoutconv.nn.quantize"),
            (
                "from spconv.pytorch.quantization import get_default_spconv_qconfig_mapping",
                "qconfig_mapping.*layoutconv.nn.quantize",
            ),
            ("from spconv import core_cc", "core_cc.*kernels"),
            ("from spconv import SubMConv3d", "SubMConv3d.*in spconv.pytorch.*1.2"),
            ("from spconv.modules import SparseModule", "modules.*in spconv.pytorch.*1.2"),
            ("from spconv import ops", "ops.*in spconv.pytorch"),
            ("from spconv.pytorch import nothing", "cannot import name 'nothing'"),
            ("import spconv.nothing", "No module named 'spconv.nothing'"),
            ("from spconv.utils import nothing", "nothing"),
        ):
            with pytest.raises(ImportError, match=message):
                exec(statement)
        import spconv.pytorch as sp

        for name in MOVED:
            assert hasattr(sp, name)
        assert not hasattr(sp.ops, "get_indice_pairs")
        with pytest.raises(AttributeError, match=r"get_indice_pairs.*submanifold_map"):
            sp.ops.get_indice_pairs  # noqa: B018


def test_another_spconv_that_was_imported() -> None:
    printed = run("""
        import sys
        from types import ModuleType
        sys.modules["spconv"] = other = ModuleType("spconv")
        other.__file__ = "/elsewhere/spconv/__init__.py"
        from layoutconv.compat.spconv import install
        try:
            install()
        except RuntimeError as error:
            print(error)
        assert sys.modules["spconv"] is other
    """)
    assert (
        "/elsewhere/spconv/__init__.py: call layoutconv.compat.spconv.install() before" in printed
    )


@needs_spconv
def test_a_spconv_that_is_installed_is_found_again() -> None:
    printed = run("""
        from layoutconv.compat.spconv import install
        with install():
            import spconv.pytorch
            assert "layoutconv" in spconv.pytorch.__file__
        import spconv.pytorch
        print(spconv.pytorch.__file__)
    """)
    assert "layoutconv/compat" not in printed


def modules_of(package: Any) -> list[str]:
    """A package and its modules, but for those that are said not to be there."""
    names = [package.__name__]
    for found in iter_modules(package.__path__, f"{package.__name__}."):
        if found.name.removeprefix("spconv.") not in MODULES:
            inner = found.ispkg and modules_of(importlib.import_module(found.name))
            names += inner or [found.name]
    return names


HELPERS = {"main", "identity_decorator"}  # of spconv's own modules


@needs_spconv
def test_every_name_of_spconv_is_there_or_says_why_not() -> None:
    """Every module, and every public name that a module of spconv's own defines."""
    reference()
    shown = 0
    for name in modules_of(importlib.import_module("spconv")):
        if name == "spconv.__version__":
            continue
        ours = importlib.import_module(f"layoutconv.compat.{name}")
        if name == "spconv.algo":  # which does not load without CUDA
            continue
        for public, value in vars(importlib.import_module(name)).items():
            constant = name.endswith("constants") and public.isupper()
            home = getattr(value, "__module__", name if constant else None)
            if public.startswith("_") or home != name or inspect.ismodule(value):
                continue
            if public not in HELPERS:
                assert hasattr(ours, public) or public in REASONS, f"{name}.{public}"
                shown += 1
    assert shown > 100


# -- names that are there because others look for them ---------------------------------------------


def test_pairs_of_a_key() -> None:
    """In the form of spconv's Native: rows of both sides, as many as there are, then -1."""
    sp = layoutconv.compat.spconv.pytorch
    cells = torch.tensor([[0, 1], [0, 4], [0, 2]], dtype=torch.int32)
    x = SparseConvTensor(torch.randn(3, 2), cells, [6], 1)
    y = sp.SubMConv1d(2, 2, 3, indice_key="a")(x)
    data = y.find_indice_pair("a")
    assert isinstance(data, sp.core.ImplicitGemmIndiceData)
    assert data.indice_pair_num.tolist() == [1, 3, 1]
    assert data.indice_pairs.dtype == torch.int32
    assert data.indice_pairs.tolist() == [
        [[0, -1, -1], [0, 1, 2], [2, -1, -1]],
        [[2, -1, -1], [0, 1, 2], [0, -1, -1]],
    ]


def test_a_hash_table() -> None:
    table = HashTable(torch.device("cpu"), torch.int32, torch.int64, max_size=10)
    keys = torch.tensor([9, 2, 9, 5], dtype=torch.int32)
    table.insert(keys, torch.tensor([1, 2, 3, 4]))
    values, is_empty = table.query(torch.tensor([5, 9, 7, 2, 100], dtype=torch.int32))
    assert values.tolist() == [4, 3, 0, 2, 0]
    assert is_empty.tolist() == [False, False, True, False, True]
    failed = table.insert_exist_keys(keys[:1] + torch.tensor([0, 1]), torch.tensor([70, 80]))
    assert failed.tolist() == [0, 1]
    table.insert(torch.tensor([1], dtype=torch.int32))
    found, values, count = table.items()
    assert (found.tolist(), values.tolist(), count.item()) == ([1, 2, 5, 9], [0, 2, 4, 70], 4)
    assert table.assign_arange_().item() == 4
    assert table.query(keys)[0].tolist() == [3, 1, 3, 2]
    with pytest.raises(ArgumentError, match="key_dtype"):
        HashTable("cpu", torch.float32, torch.int64)


def test_scattering() -> None:
    """Rows at cells of two modes; of those at one, the last, on whatever device."""
    indices = torch.tensor([[1, 0], [0, 2], [1, 0]])
    found = scatter_nd(indices, torch.tensor([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]]), [2, 3, 2])
    wanted = torch.zeros(2, 3, 2)
    wanted[1, 0], wanted[0, 2] = torch.tensor([5.0, 6.0]), torch.tensor([3.0, 4.0])
    assert torch.equal(found, wanted)


@needs_spconv
def test_scattering_is_that_of_spconv() -> None:
    core = importlib.import_module("spconv.pytorch.core")
    indices = torch.randint(0, 4, (9, 3))
    updates = torch.randn(9, 2)
    with pytest.warns(UserWarning, match="non-tuple"):
        wanted = core.scatter_nd(indices, updates, [4, 4, 4, 2])
    assert torch.equal(scatter_nd(indices, updates, [4, 4, 4, 2]), wanted)


def test_duplicates_can_be_removed() -> None:
    sp = layoutconv.compat.spconv.pytorch
    cells = torch.tensor([[0, 2], [1, 1], [0, 2], [0, 0]], dtype=torch.int32)
    x = SparseConvTensor(torch.arange(4.0)[:, None], cells, [4], 2)
    y = sp.spatial.RemoveDuplicate()(x)
    assert y.features[:, 0].tolist() == [3, 0, 1]
    assert y.indices.tolist() == [[0, 0], [0, 2], [1, 1]]
    assert y.coordinates.check().repeats is None


def test_small_names(capsys: pytest.CaptureFixture[str]) -> None:
    sp = layoutconv.compat.spconv.pytorch
    x = SparseConvTensor(torch.ones(1, 1), torch.zeros(1, 2).int(), [1], 1)
    assert sp.modules.PrintTensorMeta()(x) is x
    assert sp.modules.PrintCurrentTime()(x, "after", reset=True) is x
    assert "tensor(1.)" in capsys.readouterr().out
    assert sp.constants.PYTORCH_VERSION >= [2, 6]
    assert sp.constants.is_amp_enabled() is False
    with x._timer.namespace("a"), x._timer.record("b", 0):
        assert x._timer.collect_by_name("a", {"x.a": 1.0, "b": 2.0}) == {"x.a": 1.0}
