"""``draw --serve``: a page on this machine on which one types an expression and sees it."""

from __future__ import annotations

import sys
from base64 import b64encode
from functools import cache
from hashlib import sha256
from html import escape
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, quote, urlsplit

from ..algebra import LayoutError
from .api import draw
from .expression import LONGEST, evaluate, operations
from .followed import proof
from .html import asset, code, drawing, no_drawing, page
from .step import Step
from .steps import steps, summary

EXAMPLES = (
    "((2,2),(4,2)):((1,8),(2,16))",
    "zipped_divide((4,8):(8,1), (2,4))",
    "(6,2):(8,2) @ (4,3):(3,1)",
    "logical_divide(24, 4:2)",
    "S<3,0,3> @ (8,8):(8,1)",
    "right_inverse((4,8):(8,1))",
    "(4,3):(1,8) @ 6:1",
)


class Server(ThreadingHTTPServer):
    """The page, at ``url``, for programs on this machine alone.

    Args:
        port: on which it is served, on 127.0.0.1; 0 for one that is free.
        limit: how many rows and columns of a layout are shown.

    It answers ``/`` with the page, which draws the ``expression`` of its query, and ``/drawing``
    with what is shown of an expression alone. A request under another name than 127.0.0.1 or
    localhost is refused: it came by way of a page elsewhere whose name was pointed here.
    """

    daemon_threads = True

    def __init__(self, port: int = 0, *, limit: int = 32) -> None:
        super().__init__(("127.0.0.1", port), _Handler)
        self.limit = limit
        port = self.server_address[1]
        self.url = f"http://127.0.0.1:{port}/"
        self.names = {f"127.0.0.1:{port}", f"localhost:{port}"}
        if port == 80:
            self.names |= {"127.0.0.1", "localhost"}

    def server_bind(self) -> None:
        # The one of HTTPServer asks a name server what this machine is called.
        self.socket.bind(self.server_address)
        self.server_address = self.socket.getsockname()
        self.server_name, self.server_port = "127.0.0.1", self.server_address[1]

    def handle_error(self, request: Any, client_address: Any) -> None:
        # A page that is typed on takes back questions that the next letter made idle.
        if not isinstance(sys.exc_info()[1], ConnectionError | TimeoutError):
            super().handle_error(request, client_address)

    def address_of(self, expression: str | None) -> str:
        """Where an expression is drawn."""
        return self.url + (f"?expression={quote(expression)}" if expression else "")


def shown(expression: str, limit: int = 32) -> tuple[bool, str]:
    """Whether an expression is a layout, and what the page shows: it, or why there is none."""
    if not expression.strip():
        return True, ""
    try:
        value = evaluate(expression)
        return True, drawing(value, draw(value, limit=limit), _steps(expression, limit))
    except LayoutError as error:
        if error.operation:
            found = _steps(expression, limit)
            return False, no_drawing("There is no such layout", proof(error), str(error), found)
        sentence, _, line = str(error).partition("\n")
        return False, no_drawing("This is no layout", sentence, line or expression, [])
    except (ValueError, TypeError, OverflowError, RecursionError) as error:
        return False, no_drawing("This cannot be drawn", "", str(error), [])


def _steps(expression: str, limit: int) -> list[Step]:
    """The steps; none if a map on the way has no picture, such as a swizzle of coordinates."""
    try:
        return steps(expression, limit=limit)
    except (LayoutError, ValueError, TypeError, RecursionError):
        return []


def whole(expression: str, limit: int = 32) -> str:
    """The page with its form, for an expression; without a script, the form still works."""
    examples = "".join(
        f'<li><a href="?expression={quote(e)}"><code>{escape(e)}</code></a></li>' for e in EXAMPLES
    )
    known = "".join(
        f"<tr><td><code>{name}</code></td><td>{code(summary(name))}</td></tr>"
        for name in operations()
    )
    head = f"""<header>
<form method="get" action="/"><label for="expression">A layout, or an expression of layouts</label>
<input id="expression" name="expression" value="{escape(expression)}" maxlength="{LONGEST}"
 autocomplete="off" autocapitalize="off" spellcheck="false" autofocus>
<button>Draw</button></form>
<ul class="examples" aria-label="Examples">{examples}</ul>
<details><summary>What can be typed</summary>
<p>A layout is <code>shape:stride</code>, a swizzle <code>S&lt;3,0,3&gt;</code>, and
<code>A @ B</code> the composition of two; a shape alone is compact. A tiler is a layout, an
integer, or a tuple of these for the modes of a layout, in which <code>_</code> leaves a mode as it
is.</p>
<table>{known}</table></details>
</header>
"""
    return page("layoutconv", shown(expression, limit)[1], head)


class _Handler(BaseHTTPRequestHandler):
    server: Server
    server_version, sys_version = "layoutconv", ""
    timeout = 30  # seconds that a connection may wait for its request

    def do_GET(self) -> None:
        if self.headers.get("Host") not in self.server.names:
            self.answer(403, "text/plain", f"This page is served at {self.server.url} alone.\n")
            return
        asked = urlsplit(self.path)
        given = parse_qs(asked.query, keep_blank_values=True).get("expression")
        expression = given[0] if given else EXAMPLES[0]
        if asked.path == "/":
            self.answer(200, "text/html", whole(expression, self.server.limit))
        elif asked.path == "/drawing":
            good, fragment = shown(expression, self.server.limit)
            self.answer(200 if good else 422, "text/html", fragment)
        else:
            self.answer(404, "text/plain", "There is / and /drawing?expression=...\n")

    def do_HEAD(self) -> None:
        self.do_GET()

    def answer(self, status: int, kind: str, content: str) -> None:
        body = content.encode()
        self.send_response(status)
        self.send_header("Content-Type", f"{kind}; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Cache-Control", "no-store")
        self.send_header("Content-Security-Policy", _policy())
        self.send_header("Cross-Origin-Resource-Policy", "same-origin")
        self.send_header("Referrer-Policy", "no-referrer")
        self.send_header("X-Content-Type-Options", "nosniff")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Nothing: who typed what is nobody else's business."""


@cache
def _policy() -> str:
    """Only our style and our script, and requests to nowhere but here."""
    style, script = (
        b64encode(sha256(asset(name).encode()).digest()).decode()
        for name in ("page.css", "page.js")
    )
    return (
        f"default-src 'none'; style-src 'sha256-{style}'; script-src 'sha256-{script}'; "
        "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    )
