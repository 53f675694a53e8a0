"""Whom the server of ``draw --serve`` answers, how much it takes in, and for how long it waits."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from threading import Thread
from time import monotonic, sleep

import pytest

from layoutconv.drawing import loopback
from layoutconv.drawing.serve import Server

from .serving import SLOW, served

HOSTILE = "nullspace%284%29"  # half a second, then an error


@pytest.fixture
def server() -> Iterator[Server]:
    with served(SLOW) as server:
        yield server


def opened(server: Server) -> socket.socket:
    return socket.create_connection(("127.0.0.1", server.server_address[1]), timeout=30)


def answer(server: Server, *lines: str, body: bytes = b"", host: bool = True) -> bytes:
    own = [f"Host: 127.0.0.1:{server.server_address[1]}"] if host else []
    with opened(server) as connection:
        connection.sendall("\r\n".join([*lines, *own, "", ""]).encode() + body)
        received = b""
        while more := connection.recv(1 << 16):
            received += more
    return received


def status(answer: bytes) -> int:
    assert answer.startswith(b"HTTP/1.0 ")
    return int(answer[9:12])


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = monotonic() + 20
    while not condition():
        assert monotonic() < deadline
        sleep(0.01)


@pytest.mark.parametrize(
    ("header", "expected"),
    [
        ("Origin: http://127.0.0.1:{port}", 200),
        ("Origin: http://localhost:{port}", 200),
        ("Sec-Fetch-Site: same-origin", 200),
        ("Sec-Fetch-Site: none", 200),
        ("Origin: http://example.org", 403),
        ("Origin: http://127.0.0.1:1", 403),
        ("Origin: https://127.0.0.1:{port}", 403),
        ("Origin: null", 403),
        ("Sec-Fetch-Site: cross-site", 403),
        ("Sec-Fetch-Site: same-site", 403),
        ("Host: example.org", 403),  # a second one
        ("Content-Length: 4", 413),
        ("Transfer-Encoding: chunked", 413),
        ("X: " + "x" * loopback.REQUEST_BYTES, 431),
    ],
)
def test_pages_elsewhere_and_content_are_refused(
    server: Server, header: str, expected: int
) -> None:
    asked = answer(
        server, "GET /drawing?expression=4:1 HTTP/1.1",
        header.format(port=server.server_address[1]), body=b"1234",
    )  # fmt: skip
    assert status(asked) == expected
    assert (b"<svg" in asked) is (expected == 200)
    assert b"X-Content-Type-Options: nosniff" in asked


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("GET /", 505),  # of HTTP/0.9, which has no headers
        ("GET http://127.0.0.1/ HTTP/1.1", 400),
        ("GET * HTTP/1.1", 400),
        ("GET /%5B HTTP/1.1", 404),
        ("GET /drawing?" + "&" * 100 + " HTTP/1.1", 400),
        ("<script>alert(1)</script>", 400),
        ("GET /" + "a" * 2 * loopback.REQUEST_BYTES + " HTTP/1.1", 431),
        ("CONNECT / HTTP/1.1", 501),
    ],
    ids=lambda value: str(value)[:20],
)
def test_what_is_no_request_is_told_so_and_not_repeated(
    server: Server, line: str, expected: int
) -> None:
    asked = answer(server, line)
    assert status(asked) == expected
    assert b"script>" not in asked
    assert b"Content-Security-Policy: default-src 'none'" in asked


def test_a_request_without_a_name_is_refused(server: Server) -> None:
    assert status(answer(server, "GET / HTTP/1.1", host=False)) == 403
    assert status(answer(server, "GET / HTTP/1.0", host=False)) == 403


def test_a_slow_client_has_so_long_and_no_longer(
    server: Server,
) -> None:
    """A byte now and then does not keep a connection: the deadline is that of the request."""
    server.request_seconds = 0.3
    with opened(server) as connection:
        wait_until(lambda: server.connections() == 1)
        with pytest.raises(OSError):  # noqa: PT012
            for _ in range(400):
                connection.sendall(b"G")
                sleep(0.05)
    wait_until(lambda: server.connections() == 0)


def test_a_client_that_takes_no_answer_has_so_long_and_no_longer(
    server: Server,
) -> None:
    server.answer_seconds = 0.3
    with socket.socket() as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.connect(("127.0.0.1", server.server_address[1]))
        host = f"Host: 127.0.0.1:{server.server_address[1]}"
        asked = f"GET /drawing?expression=%2832,32,6,2%29 HTTP/1.1\r\n{host}\r\n\r\n"
        connection.sendall(asked.encode())
        wait_until(lambda: server.connections() == 1)
        wait_until(lambda: server.connections() == 0)


def test_silent_connections_keep_nobody_out(server: Server) -> None:
    silent = [opened(server) for _ in range(loopback.CONNECTIONS + 5)]
    started = monotonic()
    assert status(answer(server, "GET /drawing?expression=4:1 HTTP/1.1")) == 200
    assert monotonic() - started < server.request_seconds  # none had to end by itself
    # The oldest made way.
    assert silent[0].recv(1) == b""
    assert server.connections() <= loopback.CONNECTIONS + 1
    for connection in silent:
        connection.close()
    wait_until(lambda: server.connections() == 0)


def test_who_asks_for_too_much_keeps_nobody_waiting(server: Server) -> None:
    done: list[str] = []

    def ask(name: str, expression: str) -> None:
        told = answer(server, f"GET /drawing?expression={expression} HTTP/1.1")
        done.append(f"{name} {status(told)} {b'takes more than' in told}")

    answer(server, "GET /drawing?expression=4 HTTP/1.1")  # a worker is there
    hostile = [Thread(target=ask, args=("hostile", HOSTILE)) for _ in range(2)]
    for thread in hostile:
        thread.start()
    wait_until(lambda: server.connections() == 2)
    ask("browser", "4:1")
    for thread in hostile:
        thread.join()
    assert done == ["browser 200 False", "hostile 422 True", "hostile 422 True"]
    ask("browser", "4:1")  # the workers were replaced
    assert done[-1] == "browser 200 False"


def test_a_request_that_nobody_is_free_for_is_told_to_wait(
    server: Server,
) -> None:
    server.patience = 0.01
    answers: list[int] = []

    def ask() -> None:
        answers.append(status(answer(server, f"GET /drawing?expression={HOSTILE} HTTP/1.1")))

    threads = [Thread(target=ask) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert set(answers) == {422, 503}
