"""The site builds without a warning, its links lead somewhere, and it has all there is to know."""

from __future__ import annotations

import ast
import os
import re
from collections.abc import Iterator
from html.parser import HTMLParser
from importlib import import_module
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

from .sources import statements
from .warm_process import run_python

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
PUBLIC = (
    "layoutconv",
    "layoutconv.algebra",
    "layoutconv.conv",
    "layoutconv.distributed",
    "layoutconv.drawing",
    "layoutconv.ops.execute",
    "layoutconv.nn",
    "layoutconv.nn.functional",
    "layoutconv.sparse",
    "layoutconv.testing",
)
# ``python -m sphinx``, which spends a quarter of its time on a search for garbage.
BUILD = """
import gc, runpy
gc.disable()
runpy.run_module("sphinx", run_name="__main__", alter_sys=True)
"""


class Page(HTMLParser):
    """Where a page leads, and the places in it that others can lead to."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.leads_to: set[str] = set()
        self.places: set[str] = set()
        self.feed(path.read_text("utf-8"))

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        for name, value in attributes:
            if name in ("href", "src") and value:
                self.leads_to.add(value)
            elif name == "id" and value:
                self.places.add(value)


def dead_ends(site: Path) -> Iterator[str]:
    """Links of a site to files, or to places in them, that are not there."""
    pages = {path.resolve(): Page(path) for path in site.rglob("*.html")}
    for path, page in pages.items():
        for link in page.leads_to:
            url = urlsplit(link)
            if url.scheme or url.netloc:
                continue
            target = (path.parent / unquote(url.path)).resolve() if url.path else path
            place = unquote(url.fragment)
            if not target.is_file() or (
                place and target in pages and place not in pages[target].places
            ):
                yield f"{path.relative_to(site.resolve())}: {link}"


def test_the_site(tmp_path: Path) -> None:
    """One test, since the site is built once: by the README's command, but for the folder."""
    for module in ("sphinx", "furo", "myst_parser"):
        pytest.importorskip(module, reason='the site wants pip install -e ".[docs]"')
    options = ["-W", "-q", "--keep-going", str(DOCS), str(tmp_path)]
    python_path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "PYTHONPATH": python_path}
    done = run_python(["-c", BUILD, *options], ROOT, environment, timeout=1800)
    assert done.returncode == 0, done.stderr
    assert list(dead_ends(tmp_path)) == []
    assert {"index", "search"} <= {path.stem for path in tmp_path.glob("*.html")}
    assert "im2col" in (tmp_path / "searchindex.js").read_text("utf-8")
    assert list(missing_names(tmp_path)) == []
    reference = "".join(page.read_text("utf-8") for page in (tmp_path / "reference").glob("*"))
    assert "Parameters" in reference
    assert ">Type<" not in reference  # half a sentence, taken for the type of a property


def missing_names(site: Path) -> Iterator[str]:
    """Public names that the reference has under none of their names."""
    from sphinx.util.inventory import InventoryFile

    with (site / "objects.inv").open("rb") as file:
        found = InventoryFile.load(file, "", lambda base, path: path)
    kinds = "py:class", "py:exception", "py:function"
    documented = [found_object(name) for kind in kinds for name in found.get(kind, ())]
    for module in PUBLIC:
        for name in import_module(module).__all__:
            value = getattr(import_module(module), name)
            if callable(value) and not any(value is there for there in documented):
                yield f"{module}.{name}"


def found_object(name: str) -> object:
    """Return the module-level object of a dotted name, or None."""
    home, _, last = name.rpartition(".")
    return getattr(import_module(home), last, None) if home else None


def test_dead_ends_are_found(tmp_path: Path) -> None:
    (tmp_path / "a.html").write_text('<p id="here"><a href="b.html#there">b</a><img src="c.png">')
    (tmp_path / "b.html").write_text('<a href="a.html#here">a</a><a href="https://x.org">x</a>')
    assert sorted(dead_ends(tmp_path)) == ["a.html: b.html#there", "a.html: c.png"]


def test_every_error_is_in_the_catalogue() -> None:
    sources = [*(ROOT / "layoutconv").rglob("*.py"), *(ROOT / "kernels").rglob("*.py")]
    errors = {
        node.name
        for path in sources
        for node in statements(ast.parse(path.read_text("utf-8")))
        if isinstance(node, ast.ClassDef)
        and any(ast.unparse(base).endswith(("Error", "Exception")) for base in node.bases)
        and "BaseException" not in map(ast.unparse, node.bases)  # it is caught by whom it is for
    }
    catalogue = (DOCS / "errors.md").read_text("utf-8")
    shown = set(re.findall(r"^(?:\w+\.)*(\w+Error): ", catalogue, re.M))
    assert errors <= shown | {"LayoutError"}  # which is raised as one of its two kinds


def test_every_file_of_the_kernels_is_explained() -> None:
    page = (DOCS / "template.md").read_text("utf-8")
    kernels = ROOT / "kernels"
    files = {path.relative_to(kernels).as_posix() for path in kernels.rglob("*.py")}
    linked = set(re.findall(r"\]\(\.\./kernels/([\w/]+\.py)\)", page))
    assert {file for file in files if not file.endswith("__init__.py")} - linked == set()
