"""``layoutconv info``: installed packages, the GPUs for kernels, and the kernels kept on disk."""

from __future__ import annotations

import platform
import re
from importlib import metadata
from pathlib import Path
from typing import Any

import click

from .. import __version__
from ..base.cache_folder import cache_directory, cache_limit
from ..base.devices import cuda_driver, driver_is_too_old, version_text
from .cache import kept_files, readable_size
from .text_table import as_json, print_json, print_pairs

_PACKAGES = ("nvidia-cutlass-dsl", "apache-tvm-ffi", "numpy")


@click.command(
    short_help="Show what is installed and where kernels would run.",
    epilog="\b\nexamples:\n  layoutconv info\n  layoutconv info --json",
)
@as_json
def info(as_json: bool) -> None:
    """Show what is installed, where kernels would run, and how many are kept.

    "layoutconv cache list" lists them.
    """
    found = facts()
    if as_json:
        print_json(found)
        return
    cache = found["cache"]
    pairs = [("layoutconv", found["layoutconv"]), ("python", found["python"])]
    pairs += [(name, version or "not installed") for name, version in found["packages"].items()]
    pairs.append(("executor", found["executor"]))
    for at, gpu in enumerate(found["gpus"]):
        about = f"{gpu['name']}, compute capability {gpu['capability']}, {gpu['memory_gib']} GiB"
        pairs.append(
            (f"GPU {at}", about + ("" if gpu["runs_kernels"] else ", too old for kernels"))
        )
    if not found["gpus"]:
        pairs.append(("GPU", f"none: {found['no_gpu']}"))
    pairs.append(("driver", found["driver"] or "none"))
    pairs.append(("cache", cache["folder"]))
    pairs.append(
        (
            "kernels",
            f"{cache['kernels']} kept, {readable_size(cache['bytes'])} of at most"
            f" {readable_size(cache['limit'])}: cache list names them",
        )
    )
    pairs.append(("tuned", f"{cache['tuned']} choices, {cache['shipped']} in the package"))
    print_pairs(pairs)


def facts() -> dict[str, Any]:
    """Return everything that ``info`` prints, by name."""
    import torch

    from ..base.devices import choose_device, why_no_gpu
    from ..gpu import measured_choices

    gpus = [_gpu(torch.cuda.get_device_properties(at)) for at in range(torch.cuda.device_count())]
    kept = kept_files()
    return {
        "layoutconv": __version__,
        "python": f"{platform.python_version()} on {platform.platform(terse=True)}",
        # torch's own word has the CUDA that it was built for.
        "packages": {"torch": str(torch.__version__)}
        | {name: _version(name) for name in _PACKAGES},
        "executor": choose_device("auto")[1],
        "gpus": gpus,
        "no_gpu": None if gpus else why_no_gpu(),
        "driver": _driver(),
        "cache": {
            "folder": str(cache_directory()),
            "kernels": len(kept.kernels),
            "bytes": kept.size,
            "limit": cache_limit(),
            "tuned": sum(1 for _ in measured_choices.kept()),
            "shipped": measured_choices.shipped_count(),
        },
    }


def _gpu(found: Any) -> dict[str, Any]:
    return {
        "name": found.name,
        "capability": f"{found.major}.{found.minor}",
        "memory_gib": round(found.total_memory / 2**30),
        "multiprocessors": found.multi_processor_count,
        "runs_kernels": (found.major, found.minor) >= (8, 0),
    }


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _driver(proc: Path = Path("/proc/driver/nvidia/version")) -> str | None:
    """Return the versions of NVIDIA's driver and its CUDA, such as "580.65.06, CUDA 13.0"."""
    parts = []
    try:
        release = re.search(r"\b\d{3}\.\d+(?:\.\d+)?\b", proc.read_text())
        parts += [release[0]] if release else []
    except OSError:
        pass
    cuda = cuda_driver()
    if cuda is not None:
        parts.append(
            f"CUDA {version_text(cuda)}" + (", too old for kernels" if driver_is_too_old() else "")
        )
    return ", ".join(parts) or None
