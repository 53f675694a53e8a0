"""The process that evaluates and draws what was typed, where it can be stopped.

It reads a request from standard input, a line of JSON, answers in one on standard output, and waits
for the next; ``workers.py`` is the other end. Before an answer it says how long each part of it may
take. It opens no file but modules.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import traceback
from typing import Any, BinaryIO

from ..algebra import LayoutError, LayoutTypeError
from ..errors import ArgumentError
from .budget import BudgetError, Exhausted, has_timers, limit_process
from .tasks import TASKS


def main(memory: int) -> None:
    """Answer requests until standard input ends, or one has taken all that it may."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for who asks
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # whatever is printed is no answer
    limit_process(memory, lambda seconds: _send(answers, {"within": seconds}))
    _send(answers, {"timers": has_timers()})
    for line in sys.stdin.buffer:
        answer = answer_to(json.loads(line))
        _send(answers, answer)
        if answer.get("error") == "budget":
            return  # something was interrupted in its midst, or memory is in pieces: begin anew


def answer_to(request: dict[str, Any]) -> dict[str, Any]:
    """What a request comes to: a result, or an error in a form that can be sent.

    >>> answer_to({"task": "page", "arguments": {"expression": ""}})
    {'result': (True, '')}
    """
    try:
        return {"result": TASKS[request["task"]](**request["arguments"])}
    except BudgetError as error:
        return {"error": "budget", "why": [str(error)]}
    except Exhausted as spent:
        return {"error": "budget", "why": [f"this takes {spent} to draw; show less of it"]}
    except MemoryError:
        return {"error": "budget", "why": ["this takes more memory than there is for it"]}
    except LayoutError as error:
        kind = "layout type" if isinstance(error, LayoutTypeError) else "layout"
        return {"error": kind, "why": [str(error)]}
    except ArgumentError as error:
        return {"error": "argument", "why": [error.name, error.expected, str(error.got)]}
    except ValueError as error:
        return {"error": "value", "why": [str(error)]}
    except Exception:  # a fault of ours, for who asked to raise
        return {"error": "fault", "why": [traceback.format_exc()]}


def _send(answers: BinaryIO, message: dict[str, Any]) -> None:
    try:
        line = json.dumps(message).encode()
    except MemoryError:
        line = b'{"error": "budget", "why": ["this takes more memory than there is for it"]}'
    answers.write(line + b"\n")
    answers.flush()
