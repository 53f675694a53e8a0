"""A web server for the browser of this machine alone, with bounds on requests and connections.

It is the standard library's, with bounds: one request per connection, of limited bytes, within
limited seconds, however slowly they arrive; and a limited number of connections, where a new one
displaces the one that has been silent for longest. Requests from pages elsewhere are refused.

A library would add a dependency for the part that the standard library has, without the rest:
waitress (4,900 lines) keeps a client that sends a byte a second, and accepts nobody else once there
are too many of these.
"""

from __future__ import annotations

import io
import os
import socket
import sys
from contextlib import suppress
from http import HTTPStatus
from http.client import LineTooLong
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Lock
from time import monotonic
from typing import Any

CONNECTIONS = 32  # at once; a browser opens six
REQUEST_BYTES = 16 << 10  # of a request, an expression of 2,000 characters in escapes among them
_LINGER_BYTES, _LINGER_SECONDS = 1 << 20, 0.5  # limits on unread data before the connection ends


class LoopbackServer(ThreadingHTTPServer):
    """Serves ``url`` on 127.0.0.1, at ``port`` or a free one."""

    daemon_threads = True
    request_queue_size = CONNECTIONS
    allow_reuse_address = os.name == "posix"  # elsewhere it would let two programs share a port

    def __init__(self, port: int, handler: type[LoopbackHandler]) -> None:
        super().__init__(("127.0.0.1", port), handler)
        port = self.server_address[1]
        self.url = f"http://127.0.0.1:{port}/"
        self.names = {f"127.0.0.1:{port}", f"localhost:{port}"}
        if port == 80:
            self.names |= {"127.0.0.1", "localhost"}
        self.origins = {f"http://{name}" for name in self.names}
        self.request_seconds = 5.0  # until a whole request has arrived
        self.answer_seconds = 10.0  # until the client has read an answer
        self._lock = Lock()
        self._open = 0
        self._silent: dict[Any, None] = {}  # connections without a request yet, the oldest first

    def server_bind(self) -> None:
        # HTTPServer's own method asks a name server for the name of this machine.
        self.socket.bind(self.server_address)
        self.server_address = self.socket.getsockname()
        self.server_name, self.server_port = "127.0.0.1", self.server_address[1]

    def process_request(self, request: Any, client_address: Any) -> None:
        with self._lock:
            full = self._open >= CONNECTIONS
            if full and not self._silent:
                self.shutdown_request(request)
                return
            if full:
                oldest = next(iter(self._silent))
                del self._silent[oldest]
                _shut(oldest)  # its thread then reads the end of the stream, and ends
            self._open += 1
            self._silent[request] = None
        super().process_request(request, client_address)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self.has_asked(request)
            with self._lock:
                self._open -= 1

    def connections(self) -> int:
        """Return the number of open connections."""
        with self._lock:
            return self._open

    def has_asked(self, request: Any) -> None:
        """Note that a connection has sent its request, and can no longer be displaced."""
        with self._lock:
            self._silent.pop(request, None)

    def handle_error(self, request: Any, client_address: Any) -> None:
        # While a user types, the page cancels requests that the next letter outdates.
        if not isinstance(sys.exc_info()[1], ConnectionError | TimeoutError):
            super().handle_error(request, client_address)


class LoopbackHandler(BaseHTTPRequestHandler):
    """Answers one request, by ``respond`` unless it is refused."""

    server: LoopbackServer

    def policy(self) -> str:
        """The content security policy of every answer."""
        return "default-src 'none'; frame-ancestors 'none'"

    def respond(self) -> None:
        """Answer a GET or HEAD request that may be answered."""
        raise NotImplementedError

    def setup(self) -> None:
        super().setup()
        self.rfile = io.BufferedReader(
            _BoundedRequest(self.connection, self.server.request_seconds)
        )

    def handle(self) -> None:
        self.unread = False
        self.requestline = self.command = self.request_version = ""
        try:
            self.handle_one_request()
        except LineTooLong:
            self.send_error(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE)
        if self.unread:
            self.linger()

    def do_GET(self) -> None:
        self.server.has_asked(self.connection)
        if self.request_version == "HTTP/0.9":  # it has no headers to check
            self.send_error(HTTPStatus.HTTP_VERSION_NOT_SUPPORTED)
            return
        self.connection.settimeout(self.server.answer_seconds)
        refused = self.refusal()
        if refused is None:
            self.respond()
            return
        status, why = refused
        self.unread = True
        self.answer(status, "text/plain", why + "\n")

    def do_HEAD(self) -> None:
        self.do_GET()

    def refusal(self) -> tuple[HTTPStatus, str] | None:
        """Return the status and the sentence for a request to refuse, or None.

        The Host name must be ours: a page elsewhere may have pointed its own name here (DNS
        rebinding). In Origin and Sec-Fetch-Site, browsers say which page asks; a typed address is
        accepted as well.
        """
        hosts = self.headers.get_all("Host", [])
        if len(hosts) != 1 or hosts[0].strip().lower() not in self.server.names:
            return HTTPStatus.FORBIDDEN, f"This page is served at {self.server.url} alone."
        origins = set(self.headers.get_all("Origin", []))
        sites = set(self.headers.get_all("Sec-Fetch-Site", []))
        if not (origins <= self.server.origins and sites <= {"same-origin", "none"}):
            why = f"Another page asks. Type the address, {self.server.url}, to see this one."
            return HTTPStatus.FORBIDDEN, why
        lengths = self.headers.get_all("Content-Length", [])
        if "Transfer-Encoding" in self.headers or set(lengths) - {"0"}:
            return HTTPStatus.REQUEST_ENTITY_TOO_LARGE, "A request has no content here."
        if not self.path.startswith("/"):
            return HTTPStatus.BAD_REQUEST, "Expected a path."
        return None

    def answer(
        self, status: int, kind: str, content: str, headers: tuple[tuple[str, str], ...] = ()
    ) -> None:
        """Send text as ``text/html`` or ``text/plain``."""
        body = content.encode("utf-8", "replace")
        self.send_response(status)
        for name, value in (
            ("Content-Type", f"{kind}; charset=utf-8"),
            ("Content-Length", str(len(body))),
            ("Cache-Control", "no-store"),
            ("Content-Security-Policy", self.policy()),
            ("Cross-Origin-Opener-Policy", "same-origin"),
            ("Cross-Origin-Resource-Policy", "same-origin"),
            ("Referrer-Policy", "no-referrer"),
            ("X-Content-Type-Options", "nosniff"),
            ("X-Frame-Options", "DENY"),
            *headers,
        ):
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """Refuse an invalid request; the library's own page would repeat what was sent."""
        self.request_version = "HTTP/1.0"  # unknown, as the request was not understood
        self.unread = True
        self.connection.settimeout(self.server.answer_seconds)
        self.answer(code, "text/plain", HTTPStatus(code).phrase + "\n")

    def linger(self) -> None:
        """Read some of what the client still sends: closing earlier would lose the answer."""
        deadline = monotonic() + _LINGER_SECONDS
        taken = 0
        try:
            self.connection.shutdown(socket.SHUT_WR)
            while taken < _LINGER_BYTES and (left := deadline - monotonic()) > 0:
                self.connection.settimeout(left)
                more = len(self.connection.recv(4096))
                if not more:
                    return
                taken += more
        except OSError:
            return

    def version_string(self) -> str:
        """Return the name of the server, without any version."""
        return "layoutconv"

    def log_message(self, format: str, *args: object) -> None:
        """Log nothing: typed text is private."""


class _BoundedRequest(io.RawIOBase):
    """The bytes of a request as they arrive: a limited number, and all before a deadline."""

    def __init__(self, connection: socket.socket, seconds: float) -> None:
        self._connection = connection
        self._left = REQUEST_BYTES
        self._deadline = monotonic() + seconds

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        if self._left == 0:
            raise LineTooLong("a request")
        seconds = self._deadline - monotonic()
        if seconds <= 0:
            raise TimeoutError
        self._connection.settimeout(seconds)
        count = self._connection.recv_into(memoryview(buffer)[: self._left])
        self._left -= count
        return count


def _shut(connection: Any) -> None:
    with suppress(OSError):  # the client closed it first
        connection.shutdown(socket.SHUT_RDWR)
