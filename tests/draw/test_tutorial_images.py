"""The pictures of the pages are those that ``docs/make_images.py`` draws, and all are shown."""

from __future__ import annotations

import re
import sys
from importlib.util import module_from_spec, spec_from_file_location
from math import prod
from pathlib import Path

DOCS = Path(__file__).resolve().parents[2] / "docs"
PAGES = "tutorial.md", "convolutions_are_layouts.md", "point_clouds.md"


def test_the_plot_has_the_figures_of_the_page() -> None:
    spec = spec_from_file_location("make_speed", DOCS / "make_speed.py")
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    sys.modules["make_speed"] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    page = (DOCS / "performance.md").read_text("utf-8")
    ratios = [row.peer / row.ours for row in module.dense(page, "fp16", "fprop").rows]
    assert f"| geometric mean | {prod(ratios) ** (1 / len(ratios)):.2f} |" in page
    assert all(row.ours > 1 < row.peer for row in module.dense(page, "tf32", "fprop").rows)
    assert module.PICTURE.read_text("utf-8") == module.picture(), "run python docs/make_speed.py"


def test_the_pictures_are_up_to_date_and_each_is_on_a_page() -> None:
    spec = spec_from_file_location("make_images", DOCS / "make_images.py")
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    drawn = {name: figure.render("svg") for name, figure in module.pictures().items()}
    kept = {path.stem: path.read_text("utf-8") for path in module.FOLDER.glob("*.svg")}
    assert drawn == kept, "run python docs/make_images.py"
    pages = "".join((DOCS / page).read_text("utf-8") for page in PAGES)
    shown = re.findall(r"\]\(images/tutorial/(.*)\.svg\)", pages)
    assert sorted(shown) == sorted(drawn)
