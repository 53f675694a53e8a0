"""The processor of this machine: its name and its instruction sets."""

from __future__ import annotations

import hashlib
import platform
import re
from collections.abc import Iterable
from pathlib import Path

# What says which instructions a processor has, of the flags that Linux lists.
_INSTRUCTIONS = re.compile(
    r"(p?clmul|v?aes|vpclmul|[sm]+x|sse|ssse|avx|amx|fma|f16c|bmi|adx|gfni|sha|movbe|movdir|popcnt|"
    r"abm|lahf|cx16|fsgs|rdrand|rdseed|prfchw|3dnowp|clflush|clwb|xsave|rdpid|waitpkg|serialize|"
    r"cldemote|ptwrite|enqcmd|pku|invpcid|rtm|hle|lzcnt|uintr|wbnoinvd|tbm|xop|lwp|sse4a)"
)


def processor() -> str:
    """The name of a processor: of its architecture, and of a digest of its flags."""
    line = _line()
    if line is None:
        return platform.machine()
    return f"{platform.machine()} {hashlib.sha256(line.encode()).hexdigest()[:16]}"


def flags() -> list[str]:
    """The flags of this machine's processor; none where the system does not list them."""
    return sorted(set((_line() or "").partition(":")[2].split()))


def missing_instructions(wanted: Iterable[str]) -> list[str]:
    """Return which instructions, of another processor's flags, this one lacks.

    >>> missing_instructions(flags())
    []
    >>> missing_instructions(["avx_of_tomorrow", "no_instruction"])
    ['avx_of_tomorrow']
    """
    here = set(flags())
    return sorted(flag for flag in wanted if _INSTRUCTIONS.match(flag) and flag not in here)


def _line() -> str | None:
    """The line of flags that Linux has; empty if it has none, None where it does not say."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return None
    return next((line for line in lines if line.startswith(("flags", "Features"))), "")
