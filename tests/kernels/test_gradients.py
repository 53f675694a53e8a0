"""Both gradients of random problems through the template, in the machine, for every type."""

from __future__ import annotations

from hypothesis import assume, given
from hypothesis import strategies as st

from layoutconv.conv import ConvProblem, dgrad_views, wgrad_view

from .launcher import KINDS, Kind, check_kind_runs, compiled_view, tile_of
from .test_random import few, problems, tiles

kinds = st.sampled_from(KINDS)


@few
@given(data=st.data(), kind=kinds, vector=st.sampled_from([1, 2, 8]))
def test_of_the_filter(data: st.DataObject, kind: Kind, vector: int) -> None:
    problem = data.draw(problems(vector))
    ran = check_kind_runs(wgrad_view(problem), kind, data.draw(tiles(kind.dtype, 32, vector)))
    assert ran.written.all()


@few
@given(data=st.data(), kind=kinds, vector=st.sampled_from([1, 2, 8]))
def test_of_the_activation(data: st.DataObject, kind: Kind, vector: int) -> None:
    views = [view for view in dgrad_views(data.draw(problems(vector))) if view.k]
    assume(views)
    check_kind_runs(
        data.draw(st.sampled_from(views)), kind, data.draw(tiles(kind.dtype, 32, vector))
    )


ODD = {
    "stride and dilation": ConvProblem(
        (2, 9, 7, 5), (3, 3, 2), stride=(2, 3), padding=((1, 0), (0, 2)), dilation=(3, 2)
    ),
    "stride beyond the filter": ConvProblem((3, 11, 7), (9, 2), stride=5),
    "padding beyond the filter": ConvProblem((1, 3, 4, 6), (10, 2, 1), padding=(3, (0, 4))),
    "3-D": ConvProblem((1, 3, 4, 5, 3), (7, 2, 1, 3), stride=(2, 1, 2), padding=1),
    "no image": ConvProblem((0, 5, 8), (8, 3), padding=1),
    "70 taps": ConvProblem((1, 75, 4), (8, 70), padding=5),
}


def test_of_the_filter_of_odd_problems() -> None:
    for number, problem in enumerate(ODD.values()):
        kind = KINDS[number]
        ran = check_kind_runs(wgrad_view(problem), kind, tile_of(number, kind))
        assert ran.written.all()


def test_of_the_activation_of_odd_problems() -> None:
    for number, problem in enumerate(ODD.values()):
        kind = KINDS[number + 2]
        # Residues write cells of their own: all that are checked are right, the others untouched.
        for view in (v for v in dgrad_views(problem)[-2:] if v.m):
            check_kind_runs(view, kind, tile_of(number, kind))


def test_one_kernel_sums_over_any_number_of_voxels() -> None:
    """A filter gradient's kernel takes any number of voxels as an argument: it compiles once."""
    kind = KINDS[0]
    kernels = set()
    for images, extent in ((1, 3), (2, 5), (3, 31), (1, 97)):
        view = wgrad_view(ConvProblem((images, extent, 8), (24, 3), padding=1))
        check_kind_runs(view, kind, tile_of(2, kind))
        kernels.add(id(compiled_view(view, kind.dtype, tile_of(2, kind))))
    assert len(kernels) == 1
