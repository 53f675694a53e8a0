"""The pictures of the pages are those that ``docs/make_images.py`` draws, and all are shown."""

from __future__ import annotations

import re
import sys
from html import unescape
from importlib.util import module_from_spec, spec_from_file_location
from math import prod
from pathlib import Path

DOCS = Path(__file__).resolve().parents[2] / "docs"
PAGES = "tutorial.md", "convolutions_are_layouts.md", "point_clouds.md", "algebra/atoms.md"
AGAIN = "reading_cutlass.md", "algebra/threads.md", "algebra/products.md"  # show some of them again


def test_the_plots_have_the_figures_of_the_page() -> None:
    """Pictures draw and describe the figures of the page; means are recomputed."""
    spec = spec_from_file_location("make_speed", DOCS / "make_speed.py")
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    sys.modules["make_speed"] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    page = (DOCS / "performance.md").read_text("utf-8")
    panels = [module.dense(page, "fp16"), module.dense(page, "tf32")]
    columns = [ratios for panel in panels for ratios in panel.series.values()]
    means = [prod(c.values()) ** (1 / len(c)) for c in columns]
    assert f"| **geometric mean** | {' | '.join(f'**{mean:.2f}**' for mean in means)} |" in page
    for name, (figure, told) in module.figures(page).items():
        kept = (DOCS / "images" / f"{name}.svg").read_text("utf-8")
        described = unescape(re.findall("<dc:description>(.*)</dc:description>", kept)[0])
        assert described == told, "run python docs/make_speed.py"
        if name == "speed":
            drawn = [list(line.get_xdata()) for axes in figure.axes for line in axes.lines[:-1]]
            assert drawn[:6] == [list(ratios.values()) for ratios in columns]


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
    shown = re.findall(r"\]\((?:\.\./)?images/tutorial/(.*)\.svg\)", pages)
    again = "".join((DOCS / page).read_text("utf-8") for page in AGAIN)
    others = set(re.findall(r"\]\((?:\.\./)?images/tutorial/(.*)\.svg\)", again)) - set(shown)
    assert sorted([*shown, *others]) == sorted(drawn)
