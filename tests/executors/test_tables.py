"""Tables that the CPU executor keeps with a view: always used, bounded, never out of date."""

from __future__ import annotations

import copy
import gc
import pickle
import weakref

import pytest
import torch

from layoutconv.conv import ConvProblem, fprop_view, wgrad_view
from layoutconv.cpu import products, view_tables
from layoutconv.errors import ArgumentError
from layoutconv.ops.execute import execute
from layoutconv.sparse import Coordinates, KernelMap, kernel_map_view, submanifold_map
from layoutconv.sparse.views import pairs_wgrad_view
from layoutconv.view.gemm_view import GemmView

from .blocking import blocked


def integers(*shape: int) -> torch.Tensor:
    return torch.randint(-3, 4, shape).float()


def convolved(index: torch.Tensor, x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """The definition: a row of zeros for what is absent."""
    rows = torch.cat([x, torch.zeros(1, x.shape[1])])[index.long()]
    return torch.einsum("mtc,ktc->mk", rows, w.flatten(1, -2))


@pytest.fixture(params=["as a whole", "tap by tap"])
def sparse(request, monkeypatch):
    """Once where a call for each tap would cost more than it saves, once where it is made."""
    if request.param == "tap by tap":
        blocked(monkeypatch, small=0)


@pytest.fixture
def cloud():
    torch.manual_seed(0)
    return submanifold_map(Coordinates.of_keys(torch.randperm(7**3)[:60], (7, 7, 7), 1))


@pytest.mark.parametrize("inference", [False, True])
def test_an_index_that_changed_is_read_again(sparse, cloud, inference):
    with torch.inference_mode(inference):
        index = cloud.index.T.contiguous().T  # tap by tap
        view = kernel_map_view(index, 4, 6)
        x, w = integers(60, 4), integers(6, 3, 3, 3, 4)
        assert torch.equal(execute(view, x, w), convolved(index, x, w))
        before = index.clone()
        index[::7, 3] = 5  # as torch sees it, and behind its back
        assert torch.equal(execute(view, x, w), convolved(index, x, w))
        index.numpy()[-1, -1] = 2
        assert torch.equal(execute(view, x, w), convolved(index, x, w))
        assert not torch.equal(before, index)


def views(cloud: KernelMap) -> dict[str, tuple[GemmView, torch.Tensor, torch.Tensor]]:
    """Views of their own, with operands."""
    dense, C, K = ConvProblem((2, 5, 6, 4), (8, 3, 3), padding=1), 4, 6
    pairs = cloud.pairs(8)
    g, x, w = integers(60, K), integers(60, C), integers(K, 3, 3, 3, C)
    batch = pairs_wgrad_view(pairs, C, K, in_rows=60, out_rows=60)
    groups = kernel_map_view(cloud.index, C, K, groups=2)
    d = integers(*dense.activation), integers(8, 3, 3, 4), integers(*dense.output)
    return {
        "kernel map": (kernel_map_view(cloud.index, C, K), x, w),
        "groups": (groups, x, integers(K, 3, 3, 3, C // 2)),
        "pairs": (batch, g, x),
        "fprop": (_own(fprop_view(dense)), d[0], d[1]),
        "wgrad": (_own(wgrad_view(dense)), d[2], d[0]),
    }


def _own(view: GemmView) -> GemmView:
    """Not the one that all calls of a problem share."""
    return GemmView(view.a, view.b, view.d)


NAMES = ["kernel map", "groups", "pairs", "fprop", "wgrad"]


@pytest.mark.parametrize("name", NAMES)
def test_a_second_call_evaluates_no_layout(sparse, cloud, name, watched):
    view, a, b = views(cloud)[name]
    first = execute(view, a, b)
    evaluated = [watched(name, products) for name in ("MatrixPanel", "PanelOperand")]
    assert torch.equal(execute(view, a, b), first)
    assert evaluated == [[], []]


@pytest.mark.parametrize("room", [0, 3000, 40_000])
@pytest.mark.parametrize("name", NAMES)
def test_what_is_kept_is_bounded_and_makes_no_difference(sparse, cloud, name, room):
    view, a, b = views(cloud)[name]
    expected = execute(copy.deepcopy(view), a, b)
    kept = view_tables.Tables.of(view, room)
    for _ in range(2):
        assert torch.equal(execute(view, a, b), expected)
    assert view_tables.Tables.of(view) is kept
    found = [t for t in kept.tables.values() if not isinstance(t, tuple | None)]
    flat = [piece for t in found for piece in (t if isinstance(t, list) else [t])]
    assert sum(piece.nbytes for piece in flat) <= room


def test_a_batch_of_gathered_terms_is_no_loop_over_views(cloud, monkeypatch, watched):
    """Problems without a term, too: their part of D is zero, not what was there."""
    pairs = cloud.pairs(2)
    taken_apart = watched("at", GemmView)
    blocked(monkeypatch, terms=200)  # several lists of terms
    view = pairs_wgrad_view(pairs, 4, 6, in_rows=60, out_rows=60)
    g, x = integers(60, 6), integers(60, 4)
    out = torch.full((len(pairs.outputs), 6, 4), torch.nan)
    pairs.outputs[3] = -1
    execute(view, g, x, out)
    assert not taken_apart
    rows = [torch.cat([t, torch.zeros(1, t.shape[1])]) for t in (g, x)]
    left, right = rows[0][pairs.outputs.long()], rows[1][pairs.inputs.long()]
    assert torch.equal(out, left.mT @ right)


def test_the_output_is_no_operand():
    """A GPU would read what it wrote."""
    x, w = integers(1, 9, 1), integers(1, 3, 1)
    view = fprop_view(ConvProblem((1, 9, 1), (1, 3), padding=1))
    before = x.clone()
    with pytest.raises(ArgumentError, match="`out`: expected memory that does not overlap `a`"):
        execute(view, x, w, x)
    assert torch.equal(x, before)


def test_copies_and_pickles_leave_it_behind_and_nothing_keeps_a_view_alive(cloud):
    view, a, b = views(cloud)["fprop"]
    expected = execute(view, a, b)
    again = pickle.loads(pickle.dumps(view))
    assert not view_tables.Tables.of(again).tables
    assert torch.equal(execute(again, a, b), expected)
    gc.collect()
    gc.disable()
    try:
        kept = weakref.ref(view_tables.Tables.of(view))
        del view
        assert kept() is None  # at once: no circle waits for the collector
    finally:
        gc.enable()


def test_tables_of_a_view_without_an_index_go_with_it(monkeypatch):
    """All of them have one bound together; a copy has its own."""
    view = copy.deepcopy(fprop_view(ConvProblem((1, 9, 9, 4), (6, 3, 3))))  # no cache holds it
    x, w = integers(1, 9, 9, 4), integers(6, 3, 3, 4)
    expected = execute(view, x, w)
    before = len(view_tables._plain)
    again = copy.deepcopy(view)
    assert torch.equal(execute(again, x, w), expected)
    assert len(view_tables._plain) == before + 1
    del again
    gc.collect()
    assert len(view_tables._plain) == before
    monkeypatch.setattr(view_tables, "_plain", None)  # as when the interpreter ends
    view.kept["tables"].__del__()


@pytest.mark.parametrize("view_of", [fprop_view, wgrad_view])
def test_tables_are_made_on_the_cpu_whatever_the_default_device_is(view_of):
    problem = ConvProblem((1, 6, 7, 4), (8, 3, 3), padding=1)
    a = integers(1, 6, 7, 8 if view_of is wgrad_view else 4)
    b = integers(*((1, 6, 7, 4) if view_of is wgrad_view else (8, 3, 3, 4)))
    view = view_of(problem)
    with torch.device("meta"):  # as torch.set_default_device sets
        found = execute(view, a, b)
    assert torch.equal(found, execute(view_of(problem), a, b))
    assert torch.equal(execute(view, a, b), found)
