"""The pictures of the tutorial are those that ``docs/make_images.py`` draws, and all shown."""

from __future__ import annotations

import re
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

DOCS = Path(__file__).resolve().parents[2] / "docs"


def test_the_pictures_are_up_to_date_and_each_is_in_the_tutorial() -> None:
    spec = spec_from_file_location("make_images", DOCS / "make_images.py")
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    drawn = {name: figure.render("svg") for name, figure in module.pictures().items()}
    kept = {path.stem: path.read_text("utf-8") for path in module.FOLDER.glob("*.svg")}
    assert drawn == kept, "run python docs/make_images.py"
    shown = re.findall(
        r"\]\(images/tutorial/(.*)\.svg\)", (DOCS / "tutorial.md").read_text("utf-8")
    )
    assert sorted(shown) == sorted(drawn)
