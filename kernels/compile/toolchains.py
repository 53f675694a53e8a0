"""Toolchains of kept kernels: the compiler, our own sources, and the processor."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import layoutconv
from layoutconv.base.cache_folder import (
    PREFIX,
)
from layoutconv.base.processor import processor

HERE = Path(layoutconv.__file__).parent, Path(__file__).parents[1]  # the package, and its kernels
# The package's sources of kernels: the modules that `kernels` imports, and their own imports.
SOURCES = ("algebra", "base", "planning", "view", "errors.py")
# The compiler has one package of libraries per CUDA version; both may be installed.
COMPILER = ("nvidia-cutlass-dsl", "nvidia-cutlass-dsl-libs-cu12", "nvidia-cutlass-dsl-libs-cu13",
            "apache-tvm-ffi")  # fmt: skip


def compiled_with() -> tuple[str, str]:
    """Return what kernels' names are derived from besides their keys: toolchain and processor."""
    return this_toolchain(), this_processor()


def sources_of(toolchain: str) -> str:
    """Return the digest of our own sources: the last word of ``toolchain``."""
    return toolchain.rpartition(" ")[2]


def current_version() -> str:
    """Return the beginning of the names of kernels that are compiled from these sources."""
    return version_of(this_toolchain())


def version_of(toolchain: str) -> str:
    """Return the beginning of the names of kernels of a toolchain."""
    return hashlib.sha256(toolchain.encode()).hexdigest()[:PREFIX]


@cache
def this_toolchain() -> str:
    """Digest what a kept kernel depends on besides its key: the compiler and our own sources."""
    return toolchain_of(sources(*HERE), version)


def toolchain_of(files: Iterable[tuple[str, Path]], version: Callable[[str], str]) -> str:
    """Return the versions of the compiler's packages, and a digest of files by name."""
    digest = hashlib.sha256()
    for name, source in files:
        digest.update(f"{name} {source.stat().st_size}\n".encode())
        digest.update(source.read_bytes())
    versions = []
    for package in COMPILER:
        with suppress(PackageNotFoundError):
            versions.append(f"{package} {version(package)}")
    return f"{' '.join(versions)} {digest.hexdigest()}"


def sources(package: Path, kernels: Path) -> list[tuple[str, Path]]:
    """List the files that kernels are compiled from, by name; ``package`` and ``kernels`` are the
    folders ``layoutconv`` and ``kernels``.
    """
    found = {f"kernels/{path.relative_to(kernels).as_posix()}": path
             for path in kernels.rglob("*.py")}  # fmt: skip
    for name in SOURCES:
        there = package / name
        for path in there.rglob("*.py") if there.is_dir() else [there]:
            found[path.relative_to(package).as_posix()] = path
    return sorted(found.items())


@cache
def this_processor() -> str:
    """Name the processor that host code of kernels is compiled for: it may use all instructions of
    this one.

    Machines that lack some of them may share the folder of kept kernels.
    """
    return processor()
