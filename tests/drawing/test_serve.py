"""``draw --serve`` and ``draw --steps``: to whom the page is served, and what is on it."""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
from base64 import b64encode
from functools import partial
from hashlib import sha256
from html import escape
from http.client import HTTPConnection, HTTPResponse
from pathlib import Path
from urllib.parse import quote
from urllib.request import urlopen

import pytest

from layoutconv.algebra.notation import DEEPEST
from layoutconv.cli import main
from layoutconv.drawing.fragment import fragment_of
from layoutconv.drawing.html import asset
from layoutconv.drawing.serve import EXAMPLES, Server
from layoutconv.drawing.steps import steps

from .conftest import Refused

ROOT = Path(__file__).resolve().parents[2]


def ask(server: Server, path: str, method: str = "GET", **headers: str) -> HTTPResponse:
    connection = HTTPConnection("127.0.0.1", server.server_address[1], timeout=20)
    connection.request(method, path, headers=headers)
    return connection.getresponse()


@pytest.mark.parametrize("expression", EXAMPLES)
def test_the_page_draws_its_expression(server: Server, expression: str) -> None:
    good, fragment = fragment_of(expression)
    answer = ask(server, f"/drawing?expression={quote(expression)}")
    assert answer.status == (200 if good else 422)
    assert answer.read().decode() == fragment
    with urlopen(server.address_of(expression)) as answer:
        whole = answer.read().decode()
    assert answer.headers["Content-Type"] == "text/html; charset=utf-8"
    assert fragment in whole
    assert f'value="{escape(expression)}"' in whole
    assert fragment.count("<section") == 1 + len(steps(expression))


def test_it_is_there_for_this_machine_alone(server: Server) -> None:
    assert server.server_address[0] == "127.0.0.1"
    port = server.server_address[1]
    for host in (f"127.0.0.1:{port}", f"localhost:{port}"):
        assert ask(server, "/", Host=host).status == 200
    # A name that someone pointed to 127.0.0.1, to read the page from theirs.
    for host in ("example.org", f"example.org:{port}", "127.0.0.1:1", "localhost", ""):
        answer = ask(server, "/drawing?expression=4:1", Host=host)
        assert answer.status == 403
        assert b"<svg" not in answer.read()


def test_there_is_no_other_page(server: Server) -> None:
    for path in ("/page.js", "/..%2f", "/../serve.py", "/drawing/", "/favicon.ico"):
        assert ask(server, path).status == 404
    for method in ("POST", "PUT", "DELETE", "OPTIONS"):
        assert ask(server, "/", method).status == 501
    head, whole = ask(server, "/", "HEAD"), ask(server, "/")
    assert head.read() == b""
    assert head.headers["Content-Length"] == str(len(whole.read()))


def test_what_is_typed_is_text(server: Server) -> None:
    wicked = "<script>alert(1)</script>\"'&"
    for path in ("/", "/drawing"):
        content = ask(server, f"{path}?expression={quote(wicked)}").read().decode()
        assert "<script>alert" not in content
        assert "&lt;script&gt;alert(1)&lt;/script&gt;" in content


def test_the_policy_names_the_script_and_the_style_and_nothing_else(server: Server) -> None:
    answer = ask(server, "/")
    policy = answer.headers["Content-Security-Policy"]
    content = answer.read().decode()
    for kind in ("script", "style"):
        (inside,) = re.findall(rf"<{kind}>(.*?)</{kind}>", content, re.S)
        digest = b64encode(sha256(inside.encode()).digest()).decode()
        assert f"{kind}-src 'sha256-{digest}'" in policy
    assert policy.startswith("default-src 'none'; ")
    assert " on" not in re.sub(r">[^<]*<", "><", content.split("<main>")[0].split("<header>")[1])


@pytest.mark.parametrize(
    ("expression", "heading", "told"),
    [
        ("(4,3):(1,8) @ 6:1", "There is no such layout", "At 4 it is 8, but the closest layout"),
        ("complement((2,2):(3,2), 24)", "There is no such layout", "copies would overlap"),
        ("(4,2):(1,4) ]", "This is not a layout", "expected the end"),
        ("zipped_divide(4:1, (2,2))", "This is not a layout", "has 2 modes"),
        ("S<2,0,3> @ (3,4):(1@0,1@1)", "This cannot be drawn", "has no bits"),
        ("4" * 3000, "This is not a layout", "expected at most 2000 characters"),
        ("S<2,0,2> o (4,2) o (4,2)", "This cannot be drawn", "has no bits"),
    ],
    ids=lambda value: value[:30],
)
def test_errors_are_sentences(expression: str, heading: str, told: str) -> None:
    good, fragment = fragment_of(expression)
    assert not good
    assert f"<h2>{heading}</h2>" in fragment
    assert told in fragment


def test_a_question_that_is_taken_back_is_no_error(
    server: Server, capsys: pytest.CaptureFixture[str]
) -> None:
    for error, told in ((BrokenPipeError(), ""), (KeyError("unforeseen"), "unforeseen")):
        try:
            raise error
        except Exception:
            server.handle_error(None, ("127.0.0.1", 1))
        assert (told in capsys.readouterr().err) if told else not capsys.readouterr().err


def test_a_wheel_has_what_the_page_is_made_of() -> None:
    others = {
        p.name for p in (ROOT / "layoutconv/drawing").iterdir() if p.suffix in (".css", ".js")
    }
    data = re.search(
        r'"layoutconv\.drawing" = \[(.*)\]', (ROOT / "pyproject.toml").read_text("utf-8")
    )
    assert data is not None
    assert others == set(re.findall(r'"(.*?)"', data[1]))


@pytest.mark.parametrize("depth", [DEEPEST, DEEPEST + 1, 900])
def test_shapes_nest_so_deeply_and_no_deeper(depth: int) -> None:
    good, fragment = fragment_of("(" * depth + "4" + ")" * depth)
    assert good is ("<svg" in fragment) is (depth == DEEPEST)
    assert good or f"at most {DEEPEST} levels of parentheses" in fragment


def test_nothing_is_shown_for_nothing() -> None:
    assert fragment_of("  ") == (True, "")


def contrast(one: str, other: str) -> float:
    """The contrast of two colours, as the W3C's guidelines for accessibility define it."""

    def luminance(colour: str) -> float:
        parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
        linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    low, high = sorted([luminance(one), luminance(other)])
    return (high + 0.05) / (low + 0.05)


def test_text_can_be_read_in_the_light_and_in_the_dark() -> None:
    assert contrast("#000000", "#ffffff") == pytest.approx(21)
    schemes = re.findall(r":root \{(.*?)\}", asset("page.css"), re.S)
    assert len(schemes) == 2
    for scheme in schemes:
        colour = dict(re.findall(r"--(\w+): (#\w{6})", scheme))
        for ink in ("ink", "quiet", "accent", "wrong"):
            for ground in ("page", "card"):
                assert contrast(colour[ink], colour[ground]) >= 4.5, (ink, ground)
        assert contrast(colour["quiet"], colour["band"]) >= 4.5
        assert contrast(colour["faint"], colour["card"]) >= 4.5
        assert contrast(colour["way"], colour["card"]) >= 3


@pytest.mark.skipif(not shutil.which("node"), reason="wants node")
def test_node_reads_the_script() -> None:
    subprocess.run(["node", "--check", ROOT / "layoutconv/drawing/page.js"], check=True)


def test_the_command_serves_until_ctrl_c() -> None:
    command = [sys.executable, "-m", "layoutconv", "draw", "--serve", "4:2 @ 2:1"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        # In a background job Ctrl-C is ignored, by whatever it starts too.
        preexec_fn=partial(signal.signal, signal.SIGINT, signal.SIG_DFL),
    ) as process:  # fmt: skip
        assert process.stdout is not None
        line = process.stdout.readline()
        assert re.fullmatch(r"http://127\.0\.0\.1:\d+/\?expression=\S+  \(Ctrl-C ends it\)\n", line)
        with urlopen(line.split()[0]) as answer:
            assert 'value="4:2 @ 2:1"' in answer.read().decode()
        workers = _children(process.pid)
        process.send_signal(signal.SIGINT)
        out, error = process.communicate(timeout=20)
    assert (process.returncode, out, error) == (0, "", "")
    assert not any(Path(f"/proc/{pid}").exists() for pid in workers)


def _children(pid: int) -> list[str]:
    """The processes that a process has started, where the system says so."""
    told = Path(f"/proc/{pid}/task/{pid}/children")
    return told.read_text().split() if told.exists() else []


def test_a_port_that_is_taken(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert main(["draw", "--serve", "--port", str(port)]) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"layoutconv: error: cannot listen on port {port}: ")
    assert error.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--serve", "--port", "70000"], "70000 is not in the range"),
        (["--serve", "-o", "a.html"], "--serve cannot be combined with --output."),
        (["--serve", "--atom", "m16n8k16.f16"], "--serve cannot be combined with --atom."),
        (["--serve", "--limit", "1"], "argument `--limit`: expected an int >= 4, got 1"),
        (["--port", "80", "(4,2)"], "--port needs --serve."),
        (["--steps", "--atom", "m16n8k16.f16"], "--steps cannot be combined with --atom."),
        (["--steps", "(4,2)", "--tv", "4,2"], "--steps cannot be combined with --tv."),
        (["--steps", "(4,2)", "-o", "a.svg"], "expected a .html or .txt file beside --steps"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_mistakes(arguments: list[str], message: str, refused: Refused) -> None:
    assert message in refused(arguments)


def test_steps_in_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    expression = "logical_divide(24, 4:2)"
    path = tmp_path / "steps.html"
    assert main(["draw", expression, "--steps", "-o", str(path)]) == 0
    assert fragment_of(expression)[1] in path.read_text("utf-8")
    # One that fails leaves a page that says why, and says so itself.
    assert main(["draw", "(4,3):(1,8) @ 6:1", "--steps", "-o", str(path)]) == 2
    assert "the mode 6:1 crosses a mode boundary at 4" in capsys.readouterr().err
    assert fragment_of("(4,3):(1,8) @ 6:1")[1] in path.read_text("utf-8")
    # Where there is no step, the layout itself is drawn.
    for alone in ("(4,2):(2,1)", "Layout(4, 2)", "S<1,0,1>"):
        assert main(["draw", alone, "--steps"]) == 0
        told = capsys.readouterr().out
        assert told.startswith("No layout comes before ")
        assert "┌──" in told
    assert main(["draw", expression, "--steps"]) == 0
    told = capsys.readouterr().out
    for number, step in enumerate(steps(expression), 1):
        assert f"{number}. {step.title}\n" in told
