"""The processor of this machine: its name and its instruction sets."""

from __future__ import annotations

import hashlib
import platform
import re
from collections.abc import Iterable
from pathlib import Path

# The flags listed by Linux that name instructions of a processor.
_INSTRUCTIONS = re.compile(
    r"(p?clmul|v?aes|vpclmul|[sm]+x|sse|ssse|avx|amx|fma|f16c|bmi|adx|gfni|sha|movbe|movdir|popcnt|"
    r"abm|lahf|cx16|fsgs|rdrand|rdseed|prfchw|3dnowp|clflush|clwb|xsave|rdpid|waitpkg|serialize|"
    r"cldemote|ptwrite|enqcmd|pku|invpcid|rtm|hle|lzcnt|uintr|wbnoinvd|tbm|xop|lwp|sse4a)"
)


def processor() -> str:
    """Return the name of this processor: its architecture, and a digest of its flags."""
    line = _line()
    if line is None:
        return platform.machine()
    return f"{platform.machine()} {hashlib.sha256(line.encode()).hexdigest()[:16]}"


def flags() -> list[str]:
    """Return the flags of this machine's processor; none if the system does not list them."""
    return sorted(set((_line() or "").partition(":")[2].split()))


def missing_instructions(wanted: Iterable[str]) -> list[str]:
    """Return the instructions among another processor's flags that this one lacks.

    >>> missing_instructions(flags())
    []
    >>> missing_instructions(["avx_of_tomorrow", "no_instruction"])
    ['avx_of_tomorrow']
    """
    here = set(flags())
    return sorted(flag for flag in wanted if _INSTRUCTIONS.match(flag) and flag not in here)


def _line() -> str | None:
    """Return Linux's line of flags; empty if there is none, None if the system does not say."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return None
    return next((line for line in lines if line.startswith(("flags", "Features"))), "")
