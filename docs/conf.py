"""The site: ``python -m sphinx -W docs build/docs``, then open build/docs/index.html.

Pages are Markdown (MyST), the reference is reStructuredText that takes the docstrings in. ``-W``
makes an error of every warning: a link to nowhere, a picture that is not there, a page that no
table of contents has.
"""

from __future__ import annotations

import re
import sys
from functools import cached_property
from inspect import cleandoc
from pathlib import Path
from typing import Any

from docutils import nodes

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "docs")]  # the sources of this checkout, and extensions

project = "layoutconv"
author = "the layoutconv authors"
version = release = re.findall(
    r'^version = "(.*)"', (ROOT / "pyproject.toml").read_text("utf-8"), re.M
)[0]

FITS = 1010  # pixels: letters of 11 are 8 then, in a column of 736

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "source_pages"]
html_theme = "furo"
html_title = f"layoutconv {version}"
html_copy_source = False
html_show_copyright = False
html_static_path = ["static"]
html_css_files = ["pages.css"]

myst_heading_anchors = 3
default_role = "code"  # docstrings write `name` for code, as Markdown does
nitpicky = True  # a name in a docstring that leads nowhere is a warning, too

autodoc_member_order = "bysource"
autodoc_inherit_docstrings = False
autodoc_typehints_format = "short"
python_maximum_signature_line_length = 88
napoleon_use_ivar = True
napoleon_use_rtype = False


def _whole(app: Any, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    """Napoleon takes what is before a colon for a type in the first line of a property."""
    if isinstance(obj, property | cached_property):
        lines[:] = [*cleandoc(obj.__doc__ or "").splitlines(), ""]


def _is_elsewhere(app: Any, domain: Any, node: Any) -> bool:
    """Only roles have to lead somewhere, and not those to torch; types in signatures need not."""
    return domain is not None and (
        not isinstance(node[0], nodes.literal) or node["reftarget"].startswith("torch.")
    )


def _gallery(app: Any, exception: Exception | None) -> None:
    """Operations step by step, pages of their own beside those of the site."""
    if exception is None and app.builder.format == "html":
        from layoutconv.drawing.static_gallery import write_gallery

        write_gallery(Path(app.outdir, "steps"))


def _sizes(app: Any, doctree: nodes.document, docname: str) -> None:
    """Mark pictures whose text can be read when they are as wide as a page; others scroll."""
    for image in doctree.findall(nodes.image):
        path = Path(app.srcdir, image["uri"])
        if path.suffix == ".svg" and not image["uri"].startswith("_"):
            width = re.search(r'<svg[^>]*? width="([\d.]+)(pt)?"', path.read_text("utf-8"))
            if width and float(width[1]) * (4 / 3 if width[2] else 1) <= FITS:
                image["classes"].append("fits")


def setup(app: Any) -> None:
    app.connect("doctree-resolved", _sizes)
    app.connect("build-finished", _gallery)
    app.connect("autodoc-process-docstring", _whole, priority=600)  # after napoleon
    app.connect("warn-missing-reference", _is_elsewhere)
