"""``draw --serve``: a page on this machine on which a user types an expression and sees it."""

from __future__ import annotations

from base64 import b64encode
from functools import cache
from hashlib import sha256
from html import escape
from http import HTTPStatus
from urllib.parse import parse_qs, quote, urlsplit

from ..algebra import LayoutBudgetError
from .expression import operations
from .grammar import LONGEST
from .html import asset, code, no_drawing, page, walk
from .loopback import LoopbackHandler, LoopbackServer
from .steps import summary
from .workers import CODE, RequestWorkers

EXAMPLES = (
    "((2,2),(4,2)):((1,8),(2,16))",
    "zipped_divide((4,8):(8,1), (2,4))",
    "(6,2):(8,2) @ (4,3):(3,1)",
    "logical_divide(24, 4:2)",
    "S<3,0,3> @ (8,8):(8,1)",
    "right_inverse((4,8):(8,1))",
    "(4,3):(1,8) @ 6:1",
)


_WORKERS = 3  # processes: one that uses all its time, one that restarts, and one to answer
_MEMORY = 512 << 20  # bytes of each


class Server(LoopbackServer):
    """The page, at ``url``, for programs on this machine alone.

    Args:
        port: the port on 127.0.0.1; 0 for a free one.
        limit: how many rows and columns of a layout to show.
        code: the program of the processes that evaluate expressions.

    It answers ``/`` with the page, which draws the ``expression`` of its query, and ``/drawing``
    with the part for an expression alone. Separate processes evaluate expressions, within a budget
    of time and memory. Requests from pages elsewhere are refused.
    """

    def __init__(self, port: int = 0, *, limit: int = 32, code: str = CODE) -> None:
        self.limit = limit
        self.patience = 5.0  # seconds that a request waits for one of the processes
        self.workers = RequestWorkers(_WORKERS, _MEMORY, code)
        super().__init__(port, _Handler)

    def server_close(self) -> None:
        """Stop listening, and end the processes."""
        super().server_close()
        self.workers.close()

    def address_of(self, expression: str | None) -> str:
        """Return the address that draws an expression."""
        return self.url + (f"?expression={quote(expression)}" if expression else "")

    def drawn(self, expression: str) -> tuple[int, str]:
        """Return the status of an expression, and what the page shows for it."""
        asked = {"expression": expression, "limit": self.limit}
        try:
            good, fragment = self.workers.call("page", asked, self.patience)
        except LayoutBudgetError as error:
            sentence, _, line = str(error).partition("\n")
            fragment = walk(no_drawing("This takes too much", sentence, line or expression), [])
            return HTTPStatus.UNPROCESSABLE_ENTITY, fragment
        except TimeoutError as error:
            fragment = walk(no_drawing("Please wait", str(error), expression), [])
            return HTTPStatus.SERVICE_UNAVAILABLE, fragment
        return HTTPStatus.OK if good else HTTPStatus.UNPROCESSABLE_ENTITY, fragment


def whole_page(expression: str, fragment: str) -> str:
    """Return the page with its form and ``fragment``; without a script, the form still works."""
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
    return page("layoutconv", fragment, head)


class _Handler(LoopbackHandler):
    server: Server

    def policy(self) -> str:
        return _policy()

    def respond(self) -> None:
        try:
            asked = urlsplit(self.path)
            given = parse_qs(asked.query, keep_blank_values=True, max_num_fields=8)
        except ValueError:
            self.answer(HTTPStatus.BAD_REQUEST, "text/plain", "Expected a path and a query.\n")
            return
        if asked.path not in ("/", "/drawing") or asked.netloc:
            sentence = "There is / and /drawing?expression=...\n"
            self.answer(HTTPStatus.NOT_FOUND, "text/plain", sentence)
            return
        expression = given.get("expression", [EXAMPLES[0]])[0]
        status, fragment = self.server.drawn(expression)
        if asked.path == "/":
            self.answer(HTTPStatus.OK, "text/html", whole_page(expression, fragment))
        else:
            self.answer(status, "text/html", fragment)


@cache
def _policy() -> str:
    """Allow only our style and script, and requests only to this server."""
    style, script = (
        b64encode(sha256(asset(name).encode()).digest()).decode()
        for name in ("page.css", "page.js")
    )
    return (
        f"default-src 'none'; style-src 'sha256-{style}'; script-src 'sha256-{script}'; "
        "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    )
