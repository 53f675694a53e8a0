"""Work in processes: all of it, with its errors; Ctrl-C ends it in order."""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
import time
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Any

import pytest

from layoutconv.base.fork_server import METHOD, add_item
from layoutconv.base.processes import Workers, in_processes
from layoutconv.errors import ArgumentError


def test_everything_is_called_and_errors_come_back(tmp_path: Path) -> None:
    ticks: list[tuple[int, int]] = []
    paths = [tmp_path / "a", tmp_path / "no" / "b", tmp_path / "c"]
    errors = in_processes(Path.mkdir, paths, 2, lambda *tick: ticks.append(tick))
    assert [type(error) for error in errors] == [type(None), FileNotFoundError, type(None)]
    assert [path.exists() for path in paths] == [True, False, True]
    assert ticks == [(0, 3), (1, 3), (2, 3), (3, 3)]


def begin_and_end(path: Path) -> None:
    path.mkdir()
    time.sleep(0.3)
    (path / "ended").mkdir()


def test_ctrl_c_begins_nothing_more(tmp_path: Path) -> None:
    """When the first of two has ended, the next has begun in its place; both are finished."""

    def interrupt(done: int, total: int) -> None:
        if done:
            raise KeyboardInterrupt

    paths = [tmp_path / str(i) for i in range(500)]
    with pytest.raises(KeyboardInterrupt):
        in_processes(begin_and_end, paths, 2, interrupt)
    begun = list(tmp_path.iterdir())
    assert 1 <= len(begun) <= 4
    assert all((path / "ended").exists() for path in begun)
    time.sleep(0.5)
    assert len(list(tmp_path.iterdir())) == len(begun)


def note_order(item: tuple[Path, int]) -> None:
    path, number = item
    with path.open("a") as file:
        file.write(f"{number} ")
    time.sleep(0.5)


def test_the_heaviest_of_what_waits_begins_first(tmp_path: Path) -> None:
    order = tmp_path / "order"
    with Workers(note_order, 1) as workers:
        for number, weight in enumerate((5.0, 1.0, 3.0, 3.0, 9.0)):
            workers.add((order, number), weight)
        assert workers.finish() == [None] * 5
    found = order.read_text().replace(" ", "")
    # The first may have begun before the others came.
    assert found in ("40231", "04231")


def count_down(number: int) -> None:
    """A process: have smaller numbers counted down from, and fail at some."""
    for smaller in range(number):
        add_item(smaller, float(smaller))
    if number == 9:
        os.kill(os.getpid(), signal.SIGKILL)
    if number == 1:
        fails(number)


def test_items_add_items_which_are_counted() -> None:
    """From 3: 2, 1, 0, then 1, 0, 0, and 0 of each 1: eight items, of which two fail."""
    ticks: list[tuple[int, int]] = []
    with Workers(count_down, 2) as workers:
        workers.add(3)
        errors = workers.finish(lambda *tick: ticks.append(tick))
        assert len(workers) == len(errors) == 8
    assert ticks[0] == (0, 1)
    assert ticks[-1] == (8, 8)
    totals = [total for _, total in ticks]
    assert totals == sorted(totals)
    assert errors[0] is None
    assert [str(error) for error in errors if error] == 2 * [str(wrong_item(1))]


def test_items_that_a_killed_process_had_added_are_done() -> None:
    with Workers(count_down, 1) as workers:
        workers.add(9)
        first, *others = workers.finish()
    assert isinstance(first, BrokenProcessPool)
    assert len(others) == 2**9 - 1  # as many as there are subsets of the numbers below 9, but one
    assert sum(other is not None for other in others) == 2**7


def end_at_once(path: Path) -> None:
    if path.name == "bad":
        os.kill(os.getpid(), signal.SIGKILL)
    path.mkdir()


def test_a_process_that_is_killed_takes_its_item_alone(tmp_path: Path) -> None:
    paths = [tmp_path / name for name in ("a", "bad", "c", "d")]
    errors = in_processes(end_at_once, paths, 1)
    assert [type(error) for error in errors] == [
        type(None), BrokenProcessPool, type(None), type(None),
    ]  # fmt: skip
    assert [path.exists() for path in paths] == [True, False, True, True]


def kill_the_server(item: int) -> None:
    os.kill(os.getppid(), signal.SIGKILL)
    time.sleep(60)


@pytest.mark.skipif(METHOD != "fork", reason="processes are spawned here")
def test_a_server_that_is_killed_is_an_error_and_the_next_call_has_another() -> None:
    with pytest.raises(BrokenProcessPool, match="fork server of layoutconv ended"):
        in_processes(kill_the_server, [1, 2], 2)
    assert in_processes(abs, [1], 1) == [None]


def note_server(path: Path) -> None:
    with path.open("a") as file:
        file.write(f"{os.getppid()} {os.environ.get('SURROUNDINGS')}\n")


@pytest.mark.skipif(METHOD != "fork", reason="processes are spawned here")
def test_a_server_is_used_again_where_nothing_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its imports are from an environment: another one has a server of its own."""
    noted = tmp_path / "noted"
    for value in ("a", "a", "b"):
        monkeypatch.setenv("SURROUNDINGS", value)
        assert in_processes(note_server, [noted], 1) == [None]
    servers, seen = zip(*map(str.split, noted.read_text().splitlines()), strict=True)
    assert seen == ("a", "a", "b")
    assert servers[0] == servers[1] != servers[2]


@pytest.mark.skipif(METHOD != "fork", reason="processes are spawned here")
def test_a_process_that_is_no_fork_is_new() -> None:
    """Imports of the server are not in it: it may use a GPU, say."""
    assert in_processes(has_colours, [True], 1, ready=import_colours) == [None]
    assert in_processes(has_colours, [False], 1, ready=import_colours, forks=False) == [None]


def import_colours() -> None:
    import colorsys  # noqa: F401


def has_colours(expected: bool) -> None:
    assert ("colorsys" in sys.modules) == expected


def wrong_item(item: object) -> ArgumentError:
    return ArgumentError("item", "another one", item)


def fails(item: object) -> None:
    raise wrong_item(item)


def test_errors_say_where_they_were_raised() -> None:
    (error,) = in_processes(fails, [3], 1)
    assert error is not None
    assert "`item`: expected another one, got 3" in str(error)
    assert "in fails" in str(error.__cause__)


def no_such_module() -> None:
    import layoutconv.no_such_module  # type: ignore[import-not-found]  # noqa: F401


def test_what_cannot_be_made_ready_is_raised() -> None:
    with pytest.raises(ModuleNotFoundError, match="no_such_module"):
        in_processes(abs, [1, 2], 2, ready=no_such_module)
    assert in_processes(abs, [1], 1) == [None]


def test_items_that_come_late_and_none_at_all() -> None:
    with Workers(abs, 2) as workers:
        workers.start()
    with Workers(abs, 2) as workers:
        items: list[Any] = [1, "x", lambda: None]
        for item in items:
            workers.add(item)
            time.sleep(0.2)
        errors = workers.finish()
    assert errors[0] is None
    assert isinstance(errors[1], TypeError)
    assert isinstance(errors[2], (AttributeError, pickle.PicklingError))


@pytest.mark.parametrize("parent", ["-c", "standard input"])
def test_a_parent_that_is_no_file(parent: str, tmp_path: Path) -> None:
    code = (
        "from pathlib import Path\n"
        "from layoutconv.base.processes import in_processes\n"
        f"print(in_processes(Path.mkdir, [Path({str(tmp_path / 'made')!r})], 1))\n"
    )
    command = [sys.executable, "-c", code] if parent == "-c" else [sys.executable, "-"]
    done = subprocess.run(command, input=code, capture_output=True, text=True, check=True)
    assert done.stdout == "[None]\n", done.stderr
    assert (tmp_path / "made").is_dir()


def test_the_program_that_calls_is_not_run_again(tmp_path: Path) -> None:
    """A script that does not ask whether it is the main module is common."""
    script = tmp_path / "script.py"
    made = tmp_path / "made"
    script.write_text(
        "from pathlib import Path\n"
        "from layoutconv.base.processes import in_processes\n"
        "print('started')\n"
        f"assert in_processes(Path.mkdir, [Path({str(made)!r})], 1) == [None]\n"
    )
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, check=True)
    assert done.stdout == "started\n"
    assert made.is_dir()


def test_threads_start_servers_beside_who_pickles_what_is_his(tmp_path: Path) -> None:
    """The main module is there meanwhile, with all that is in it, and stays there."""
    script = tmp_path / "script.py"
    script.write_text(
        "import pickle, sys, threading\n"
        "from layoutconv.base.processes import in_processes\n"
        "def own(): ...\n"
        "main = sys.modules['__main__']\n"
        "start = lambda: in_processes(abs, [1], 1)\n"
        "threads = [threading.Thread(target=start) for _ in range(3)]\n"
        "for thread in threads:\n"
        "    thread.start()\n"
        "while any(thread.is_alive() for thread in threads):\n"
        "    assert pickle.loads(pickle.dumps(own)) is own\n"
        "assert sys.modules['__main__'] is main\n"
    )
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_program_ends_while_its_thread_waits_for_work(tmp_path: Path) -> None:
    """And says nothing of the server that ends with it, although the thread hears of that."""
    script = tmp_path / "script.py"
    script.write_text(
        "import atexit, threading, time\n"
        "atexit.register(time.sleep, 1.0)  # after servers ended, as it was registered before\n"
        "from layoutconv.base.processes import Workers\n"
        "def wait():\n"
        "    with Workers(time.sleep, 1) as workers:\n"
        "        workers.add(600.0)\n"
        "        began.set()\n"
        "        workers.finish()\n"
        "began = threading.Event()\n"
        "threading.Thread(target=wait, daemon=True).start()\n"
        "began.wait()\n"
        "time.sleep(1.0)\n"
    )
    command = [sys.executable, str(script)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
