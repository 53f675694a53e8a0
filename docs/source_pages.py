"""Files of the repository that pages link to, as pages of the site: coloured, with line numbers.

Links stay what they are in the repository, ``[operand.py](../kernels/operand.py)``. MyST makes
downloads of them; here they lead to ``source/kernels/operand.py.html`` instead.
"""

from __future__ import annotations

from collections.abc import Iterator
from html import escape
from pathlib import Path
from typing import Any

from docutils import nodes
from sphinx.addnodes import download_reference
from sphinx.application import Sphinx

ROOT = Path(__file__).resolve().parents[1]


def setup(app: Sphinx) -> dict[str, bool]:
    app.connect("env-updated", _no_downloads)
    app.connect("doctree-resolved", _link)
    app.connect("html-collect-pages", _pages)
    return {"parallel_read_safe": True}


def _no_downloads(app: Sphinx, env: Any) -> None:
    """Keep what pages of an earlier build link to."""
    found = {(Path(app.srcdir) / path).resolve().relative_to(ROOT) for path in env.dlfiles}
    env.linked_files = getattr(env, "linked_files", set()) | found
    env.dlfiles.clear()


def _link(app: Sphinx, doctree: nodes.document, docname: str) -> None:
    for node in list(doctree.findall(download_reference)):
        _, path = app.env.relfn2path(node["reftarget"], docname)
        page = f"source/{Path(path).resolve().relative_to(ROOT)}"
        uri = app.builder.get_relative_uri(docname, page)
        node.replace_self(nodes.reference("", "", *node.children, refuri=uri, internal=True))


def _pages(app: Sphinx) -> Iterator[tuple[str, dict[str, Any], str]]:
    highlighter = getattr(app.builder, "highlighter")  # noqa: B009  # HTML builders have one
    for path in sorted(app.env.linked_files):  # type: ignore[attr-defined]
        language = "python" if path.suffix == ".py" else "text"
        code = (ROOT / path).read_text("utf-8")
        body = highlighter.highlight_block(code, language, linenos=True)
        title = escape(str(path))
        context = {"title": title, "body": f"<h1>{title}</h1>{body}", "toctree": _no_tree}
        yield f"source/{path}", context, "page.html"


def _no_tree(**options: Any) -> str:
    """Instead of the tree of all pages, which takes as long as the rest of a page."""
    return ""
