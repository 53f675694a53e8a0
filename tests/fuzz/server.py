"""Fuzz the server of ``draw --serve``: bytes that are no request, and requests of the wrong pages.

    python -m tests.fuzz.server --count 100000 [--seed 0]
    python -m tests.fuzz.server --case request:0:4711

Whatever comes, the answer is none or a whole one, of a known status, with the headers of security,
and without the text that was sent as markup. Requests that are well formed are answered exactly if
they come from the page itself. Connections that keep silent, stop in the midst, or take no answer
are left about; beside them every hundredth request is one of a browser, which has to be drawn.
"""

from __future__ import annotations

import re
import socket
import struct
import sys
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from random import Random
from threading import Thread
from time import monotonic, sleep
from typing import Any
from urllib.parse import quote
from urllib.request import urlopen

from layoutconv.drawing.serve import Server

from .report import Report, WrongError, main_of, run
from .typed import damaged, notation

SECONDS = 20.0  # that an answer may take, on a busy machine; a request may take five
SILENT = 40  # connections that are left about, more than the server has at once
STATUSES = {200, 400, 403, 404, 408, 413, 414, 422, 431, 501, 503, 505}
MARK = "<script>alert(1)</script>"
HEADERS = (
    "content-security-policy: default-src 'none'",
    "x-content-type-options: nosniff",
    "cross-origin-resource-policy: same-origin",
    "referrer-policy: no-referrer",
    "cache-control: no-store",
)


class FuzzedServer(Server):
    """The server, which notes what went wrong in its threads."""

    def __init__(self) -> None:
        self.faults: list[str] = []
        super().__init__(limit=8)

    def handle_error(self, request: Any, client_address: Any) -> None:
        error = sys.exc_info()[1]
        if not isinstance(error, ConnectionError | TimeoutError):
            self.faults.append(f"{type(error).__name__}: {error}")


class Client:
    """Sends what a case is made of, and judges what comes back."""

    def __init__(self, server: FuzzedServer) -> None:
        self.server = server
        self.port = server.server_address[1]
        self.silent: deque[socket.socket] = deque()

    def garbage(self, rng: Random) -> str:
        """Bytes that are no request."""
        alphabet = (b"GET ", b"/", b"\r\n", b"\n", b" HTTP/1.1", b"Host: ", b"\0", b"\xff", b":")
        length = rng.choice((1, 3, 10, 40, 400))
        pieces = [rng.choice((*alphabet, rng.randbytes(3), MARK.encode())) for _ in range(length)]
        return self.exchange(rng, b"".join(pieces) + rng.choice((b"", b"\r\n\r\n")))

    def damaged(self, rng: Random) -> str:
        """A request with pieces deleted, inserted and repeated."""
        text = damaged(rng, self.written(rng))
        return self.exchange(rng, text.encode("utf-8", "surrogatepass"))

    def large(self, rng: Random) -> str:
        """A request with more of something than anyone needs."""
        n = rng.choice((100, 1000, 8000, 16_000, 16_384, 17_000, 70_000, 200_000))
        host = f"Host: 127.0.0.1:{self.port}\r\n"
        text = rng.choice((
            lambda: f"GET /{'a' * n} HTTP/1.1\r\n{host}\r\n",
            lambda: f"GET /drawing?expression={'4' * n} HTTP/1.1\r\n{host}\r\n",
            lambda: f"GET /drawing?{'a=1&' * n} HTTP/1.1\r\n{host}\r\n",
            lambda: f"GET / HTTP/1.1\r\n{host}X: {'x' * n}\r\n\r\n",
            lambda: f"GET / HTTP/1.1\r\n{host}" + "X: x\r\n" * n + "\r\n",
            lambda: f"GET / HTTP/1.1\r\n{host}Content-Length: {n}\r\n\r\n" + "x" * n,
            lambda: f"POST / HTTP/1.1\r\n{host}Content-Length: {n}\r\n\r\n" + "x" * n,
            lambda: f"GET / HTTP/1.1\r\n{host}Transfer-Encoding: chunked\r\n\r\n{n:x}\r\n",
            lambda: "\r\n" * n,
            lambda: "A" * n,
        ))()  # fmt: skip
        return self.exchange(rng, text.encode())

    def request(self, rng: Random) -> str:
        """A request that is well formed, from this page or from another."""
        here = f"127.0.0.1:{self.port}"
        hosts = here, f"localhost:{self.port}", f"LOCALHOST:{self.port}"
        others = (
            "example.org",
            f"example.org:{self.port}",
            "localhost",
            "localhost:1",
            "",
            f"{here}.",
        )
        host = rng.choice(hosts) if rng.random() < 0.8 else rng.choice((*others, ""))
        origin = rng.choice((None, None, f"http://{here}", f"http://localhost:{self.port}"))
        if rng.random() < 0.2:
            wrong = "null", "http://example.org", f"https://{here}", f"http://{here}.example.org"
            origin = rng.choice((*wrong, ""))
        site = rng.choice((None, None, "same-origin", "none", "same-site", "cross-site", "?"))
        method = rng.choice(("GET", "GET", "GET", "HEAD", "POST", "OPTIONS", "TRACE", "get"))
        path = rng.choice(("/", "/drawing", "/drawing/", "/favicon.ico", "/../etc/passwd", "*"))
        query = f"?expression={quote(rng.choice((notation(rng).text, MARK, '(4,')))}"
        headers = [f"Host: {host}"]
        headers += [] if origin is None else [f"Origin: {origin}"]
        headers += [] if site is None else [f"Sec-Fetch-Site: {site}"]
        rng.shuffle(headers)
        text = "\r\n".join([f"{method} {path}{query} HTTP/1.{rng.choice('01')}", *headers, "", ""])

        ours = host in hosts and origin in (None, f"http://{here}", f"http://localhost:{self.port}")
        ours = ours and site in (None, "same-origin", "none")
        expected = {501}
        if method in ("GET", "HEAD"):
            known = {"/": {200}, "/drawing": {200, 422}, "*": {400}}.get(path, {404})
            expected = known if ours else {403}
        answer = self.answer_to(text.encode())
        self.judge(answer)
        if (status := int(answer[9:12] or 0)) not in expected:
            raise WrongError(f"{text!r} gives {status}, not {expected}")
        return str(status)

    def written(self, rng: Random) -> str:
        """A request of the page."""
        asked = quote(rng.choice((notation(rng).text, MARK)))
        path = f"{rng.choice(('/', '/drawing'))}?expression={asked}"
        return f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1:{self.port}\r\nAccept: */*\r\n\r\n"

    def exchange(self, rng: Random, data: bytes) -> str:
        """Send bytes in one of several ways, and judge the answer where one is waited for."""
        how = rng.random()
        if how < 0.8:
            answer = self.answer_to(data, rng.choice((0, 0, 0, 1, 3)))
            self.judge(answer)
            return answer[9:12].decode() or "closed"
        connection = socket.create_connection(("127.0.0.1", self.port), timeout=SECONDS)
        with suppress(OSError):
            connection.sendall(data[: rng.randint(0, len(data))])
        if how < 0.9:  # the connection is reset
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            connection.close()
            return "reset"
        self.silent.append(connection)
        if len(self.silent) > SILENT:
            self.silent.popleft().close()
        return "left"

    def answer_to(self, data: bytes, pieces: int = 0) -> bytes:
        """All that comes back for bytes, which are sent at once or in pieces."""
        with socket.create_connection(("127.0.0.1", self.port), timeout=SECONDS) as connection:
            with suppress(OSError):  # it may answer, and close, before all is sent
                size = -(-len(data) // (pieces + 1)) or 1
                for at in range(0, len(data), size):
                    if at:
                        sleep(0.001)
                    connection.sendall(data[at : at + size])
                connection.shutdown(socket.SHUT_WR)
            received = []
            with suppress(ConnectionError):
                while more := connection.recv(1 << 16):
                    received.append(more)
            return b"".join(received)

    def judge(self, answer: bytes) -> None:
        """An answer is none, or whole and harmless."""
        if not answer:
            return
        head, blank, body = answer.partition(b"\r\n\r\n")
        told = head.decode("latin-1").lower()
        status = re.match(r"http/1\.0 (\d{3}) ", told)
        if not status or int(status[1]) not in STATUSES or not blank:
            raise WrongError(f"the answer begins with {answer[:200]!r}")
        missing = [header for header in HEADERS if header not in told]
        length = re.search(r"content-length: (\d+)", told)
        if missing or not length or int(length[1]) != len(body) > 0:
            raise WrongError(f"{missing or length} in {told}")
        if MARK in body.decode() or MARK in told:
            raise WrongError(f"{MARK} comes back in {answer[:300]!r}")

    def browser(self, rng: Random) -> str:
        """A browser's request is drawn, whatever else goes on."""
        with urlopen(self.server.address_of("(4,8):(8,1)"), timeout=SECONDS) as answer:
            if b"<svg" not in answer.read():
                raise WrongError("nothing is drawn")
        return "drawn"


@contextmanager
def served(kind: Callable[[], FuzzedServer] = FuzzedServer) -> Iterator[Client]:
    """A client of a server of its own."""
    with kind() as server:
        thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        client = Client(server)
        try:
            yield client
        finally:
            for connection in client.silent:
                connection.close()
            server.shutdown()
            thread.join()


def cases(client: Client, count: int) -> Iterator[tuple[str, Callable[[Random], str], int]]:
    """The kinds of cases, and how many of ``count`` are of each."""
    yield "request", client.request, count * 4 // 10
    yield "damaged", client.damaged, count * 3 // 10
    yield "garbage", client.garbage, count * 2 // 10
    yield "large", client.large, count // 10


def campaign(count: int, seed: int = 0, kind: Callable[[], FuzzedServer] = FuzzedServer) -> Report:
    """All kinds of cases, of a ``kind`` of server, and nothing left of them afterwards."""
    report = Report()
    with served(kind) as client:
        for case, check, share in cases(client, count):
            for at in range(share):
                run(case, check, seed, at, report, SECONDS)
                if at % 100 == 0:
                    run("browser", client.browser, seed, at, report, SECONDS)
        for connection in client.silent:
            connection.close()
        deadline = monotonic() + SECONDS
        while client.server.connections() and monotonic() < deadline:
            sleep(0.01)
        if left := client.server.connections():
            report.failures.append(f"{left} connections are open after all were closed")
        report.failures += client.server.faults
    return report


def again(kind: str, seed: int, at: int) -> Report:
    """One case."""
    report = Report()
    with served() as client:
        check = {k: c for k, c, _ in cases(client, 1)}[kind]
        run(kind, check, seed, at, report, SECONDS)
    return report


main = partial(main_of, __doc__, 10_000, campaign, again)


if __name__ == "__main__":
    sys.exit(main())
