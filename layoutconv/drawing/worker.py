"""The process that evaluates and draws typed text, where it can be stopped.

It reads a request from standard input, a line of JSON, answers with a line on standard output, and
waits for the next; ``workers.py`` is the other end. Before an answer it announces how long each
part of it may take. It opens no file but modules.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import traceback
from typing import Any, BinaryIO

from ..algebra import LayoutBudgetError, LayoutError, LayoutTypeError
from ..errors import ArgumentError
from .budget import Exhausted, has_timers, limit_process
from .tasks import TASKS

_NO_MEMORY = "this takes more memory than there is for it"


def main(memory: int) -> None:
    """Answer requests until standard input ends, or a request has used up its budget."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the caller handles Ctrl-C
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # printed output is not an answer
    limit_process(memory, lambda seconds: _send(answers, {"within": seconds}))
    _send(answers, {"timers": has_timers()})
    for line in sys.stdin.buffer:
        answer = answer_to(json.loads(line))
        _send(answers, answer)
        if answer.get("ended"):
            return  # code was interrupted midway, or memory is fragmented: start a new process


def answer_to(request: dict[str, Any]) -> dict[str, Any]:
    """Return the answer to a request: a result, or an error in a form that can be sent.

    >>> answer_to({"task": "page", "arguments": {"expression": ""}})
    {'result': (True, '')}
    """
    try:
        return {"result": TASKS[request["task"]](**request["arguments"])}
    except LayoutBudgetError as error:
        ended = isinstance(error.__context__, Exhausted | MemoryError)
        return {"error": "budget", "why": [str(error)], "ended": ended}
    except Exhausted as spent:
        return _spent(f"this takes {spent} to draw; show less of it")
    except MemoryError:
        return _spent(_NO_MEMORY)
    except LayoutError as error:
        kind = "layout type" if isinstance(error, LayoutTypeError) else "layout"
        return {"error": kind, "why": [str(error)]}
    except ArgumentError as error:
        return {"error": "argument", "why": [error.name, error.expected, str(error.got)]}
    except ValueError as error:
        return {"error": "value", "why": [str(error)]}
    except Exception:  # a bug of ours, which the caller raises
        return {"error": "fault", "why": [traceback.format_exc()]}


def _spent(why: str) -> dict[str, Any]:
    return {"error": "budget", "why": [why], "ended": True}


def _send(answers: BinaryIO, message: dict[str, Any]) -> None:
    try:
        line = json.dumps(message).encode()
    except MemoryError:
        line = json.dumps(_spent(_NO_MEMORY)).encode()
    answers.write(line + b"\n")
    answers.flush()
