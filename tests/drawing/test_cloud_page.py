"""Pages of clouds: every point at its place, in one file, with the names of its classes."""

from __future__ import annotations

import re
import sys

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from layoutconv.drawing import cloud_page
from layoutconv.errors import ArgumentError, ArgumentTypeError

from .test_contrast import contrast


def of(trace: object, axes: str = "xyz") -> np.ndarray:
    return np.stack([np.asarray(getattr(trace, axis)) for axis in axes], 1)


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 60), st.integers(1, 40), st.integers(0, 9))
def test_each_class_has_its_points(count: int, kinds: int, seed: int) -> None:
    random = np.random.default_rng(seed)
    points = random.normal(size=(count, 4)).astype(np.float32)
    labels, names = random.integers(-1, kinds, count), [f"class {i}" for i in range(kinds)]
    page = cloud_page(points, {"truth": labels, "height": points[:, 2]}, classes=names)
    *classes, height = page.data
    assert sum(len(trace.x) for trace in classes) == count
    for trace in classes:
        number = -1 if trace.name == "unlabelled" else names.index(trace.name)
        assert np.array_equal(of(trace), points[labels == number, :3])
    assert np.array_equal(of(height), points[:, :3])
    assert np.array_equal(height.marker.color, points[:, 2])
    assert all(trace.visible for trace in classes)
    assert not height.visible
    shown = [button.args[0]["visible"] for button in page.layout.updatemenus[0].buttons]
    assert shown == [[True] * len(classes) + [False], [False] * len(classes) + [True]]


def test_a_page_is_one_file(tmp_path) -> None:
    points = torch.randn(50, 3)
    path = tmp_path / "cloud.html"
    cloud_page(points, {"x": points[:, 0]}, path, title="A cloud")
    page = path.read_text("utf-8")
    assert "scatter3d" in page
    assert "A cloud" in page
    assert not re.search(r"<(script|link)[^>]+(src|href)=", page)
    assert "<title>A cloud</title>" in page
    assert 'name="viewport"' in page  # telephones show the page as wide as they are


def test_an_entry_of_the_menu_is_read_when_it_is_chosen() -> None:
    """Plotly's own colour of that entry is #f4faff, whatever the menu's is."""
    points = np.zeros((2, 3))
    (menu,) = cloud_page(points, {"a": points[:, 0], "b": points[:, 1]}).layout.updatemenus
    for behind in (menu.bgcolor, "#f4faff"):
        assert contrast(menu.font.color, behind) > 4.5


def test_large_clouds_are_thinned() -> None:
    points = np.random.default_rng(0).normal(size=(1000, 3))
    (trace,) = cloud_page(points, {"z": points[:, 2]}, most=300).data
    assert np.array_equal(of(trace), points[::4].astype(np.float32))


@pytest.mark.parametrize(
    ("points", "values", "message"),
    [
        (np.zeros((0, 3)), {"z": np.zeros(0)}, "`points`"),
        (np.zeros((4, 2)), {"z": np.zeros(4)}, "`points`"),
        (np.zeros((4, 3)), {}, "`values`"),
        (np.zeros((4, 3)), {"height": np.zeros(3)}, "of `height`"),
        (np.zeros((4, 3)), {"truth": np.array([0, 1, 2, 0])}, "2 classes, or -1, in `truth`"),
    ],
)
def test_what_is_refused(points, values, message) -> None:
    with pytest.raises(ArgumentError, match=message):
        cloud_page(points, values, classes=["a", "b"])


@pytest.mark.parametrize(
    ("values", "options", "message"),
    [
        (np.zeros(4), {}, "`values`: expected quantities by name"),
        ({"z": np.zeros(4)}, {"size": 0}, "`size`"),
        ({"z": np.zeros(4)}, {"size": float("nan")}, "`size`"),
        ({"z": np.zeros(4)}, {"most": 0}, "`most`"),
    ],
)
def test_options_that_show_nothing_are_refused(values, options, message) -> None:
    with pytest.raises((ArgumentError, ArgumentTypeError), match=message):
        cloud_page(np.zeros((4, 3)), values, **options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"points": [[1, 2, 3], [4]]}, "`points`: expected an array or a tensor of real numbers"),
        ({"points": np.ones((4, 3), complex)}, "`points`: .* got ndarray of shape"),
        ({"points": torch.ones(4, 3).to_sparse()}, "`points`: .* got Tensor of shape"),
        ({"points": torch.ones(4, 3, device="meta")}, "`points`: .* real numbers"),
        ({"points": "cloud.ply"}, "`points`: .* got 'cloud.ply'"),
        ({"values": {"z": ["a"] * 4}}, "`values`: .* real numbers"),
        ({"values": {"z": [2**70] * 4}}, "`values`: .* real numbers"),
        ({"classes": None}, "`classes`: expected a sequence of names, got None"),
        ({"classes": "road"}, "`classes`: .* got 'road'"),
        ({"classes": [1, 2]}, r"`classes`: .* got \[1, 2\]"),
        ({"size": "2"}, "`size`"),
        ({"size": float("inf")}, "`size`"),
        ({"most": 2.5}, "`most`: expected points >= 1, got 2.5"),
        ({"most": None}, "`most`: expected points >= 1, got None"),
        ({"title": ["a"]}, "`title`: expected a str, got list"),
    ],
)
def test_what_is_none_of_it_is_named(options, message) -> None:
    right = {"points": np.zeros((4, 3)), "values": {"z": np.zeros(4)}}
    with pytest.raises(ArgumentError, match=message):
        cloud_page(**{**right, **options})


def test_names_may_be_numbers_and_an_array() -> None:
    kinds, names = np.array([0, 1, 1]), np.array(["road", "car"])
    page = cloud_page(np.eye(3), {0: kinds, (1, 2): kinds / 2}, classes=names)
    assert [trace.name for trace in page.data] == ["road", "car", "(1, 2)"]
    assert [button.label for button in page.layout.updatemenus[0].buttons] == ["0", "(1, 2)"]


def test_features_of_a_network_are_quantities() -> None:
    """In 16 bits, with a gradient, and with numbers that are none."""
    points, features = torch.rand(5, 3), torch.tensor([0.0, 1.0, torch.nan, torch.inf, 2.0])
    values = {"a": features.bfloat16().requires_grad_(), "none": torch.full((5,), torch.nan)}
    first, second = cloud_page(points.requires_grad_(), values).data
    assert np.array_equal(first.marker.color, features.numpy(), equal_nan=True)
    assert 0 <= first.marker.cmin < first.marker.cmax <= 2
    assert (second.marker.cmin, second.marker.cmax) == (0, 1)


def test_without_plotly_the_error_says_how_to_get_it(monkeypatch) -> None:
    for name in ("plotly", *(name for name in sys.modules if name.startswith("plotly."))):
        monkeypatch.setitem(sys.modules, name, None)  # not to be found
    with pytest.raises(ImportError, match=r"layoutconv\[view\]"):
        cloud_page(np.zeros((1, 3)), {"z": np.zeros(1)})
