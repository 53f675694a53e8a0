"""The pictures of the pages are those that ``docs/make_images.py`` draws, and all are shown."""

from __future__ import annotations

import re
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

DOCS = Path(__file__).resolve().parents[2] / "docs"
PAGES = "tutorial.md", "convolutions_are_layouts.md", "point_clouds.md"


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
