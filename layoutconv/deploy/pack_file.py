"""The file format of a pack: a zip of a manifest, a program, weights and kernels, with digests.

Only tensors are unpickled, by torch's ``weights_only`` reader. The digests detect damage and
mix-ups but are no signature: a pack holds machine code, so load packs only from sources you trust.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import pickle
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..errors import ArgumentError

FORMAT = 2
MANIFEST, PROGRAM, WEIGHTS, KERNELS = "manifest.json", "program.json", "weights.pt", "kernels.so"
# Errors that reading a file that is no pack can raise.
UNREADABLE = (
    *(zipfile.BadZipFile, KeyError, ValueError, TypeError, NotImplementedError, EOFError),
    *(AttributeError, RecursionError, pickle.UnpicklingError),
)


def write_pack(
    path: str | Path,
    about: Mapping[str, Any],
    program: Any,
    weights: Mapping[str, Tensor],
    kernels: bytes,
) -> None:
    """Write a pack, replacing an existing file atomically."""
    saved = io.BytesIO()
    torch.save(dict(weights), saved)
    parts = {
        PROGRAM: json.dumps(program).encode(),
        WEIGHTS: saved.getvalue(),
        KERNELS: kernels,
    }
    digests = {name: hashlib.sha256(content).hexdigest() for name, content in parts.items()}
    manifest = json.dumps({"format": FORMAT, **about, "sha256": digests}, indent=1).encode()
    place = Path(path)
    unfinished = place.with_name(f".{place.name}.{os.getpid()}")
    try:
        with zipfile.ZipFile(unfinished, "w", zipfile.ZIP_STORED) as archive:
            archive.comment = hashlib.sha256(manifest).hexdigest().encode()
            for name, content in {MANIFEST: manifest, **parts}.items():
                archive.writestr(zipfile.ZipInfo(name), content)
        unfinished.replace(place)
    finally:
        unfinished.unlink(missing_ok=True)


def read_pack(path: str | Path) -> tuple[dict[str, Any], dict[str, bytes]]:
    """Read a pack: return its manifest and its parts, with their digests checked.

    Raises :class:`~layoutconv.errors.ArgumentError`, of ``path``, for a file that is no pack, is
    damaged or has another format; ``OSError`` for a file that cannot be read.
    """
    whole = Path(path).read_bytes()
    try:
        with zipfile.ZipFile(io.BytesIO(whole)) as archive:
            if any(of.compress_type != zipfile.ZIP_STORED for of in archive.infolist()):
                raise zipfile.BadZipFile("packs are not compressed")
            parts = {of.filename: archive.read(of) for of in archive.infolist()}
            seal = archive.comment
        if MANIFEST not in parts:  # truncated after a part that is itself a zip file
            raise zipfile.BadZipFile("File is not a zip file")
        manifest = parts.pop(MANIFEST)
        if hashlib.sha256(manifest).hexdigest().encode() != seal:
            raise zipfile.BadZipFile("its manifest was changed")
        about = json.loads(manifest)
        form, digests = about["format"], dict(about.get("sha256", {}))
    except UNREADABLE as e:
        raise _refused(
            path, "a complete pack that `lc.pack` wrote", f"which is not one: {e}"
        ) from e
    if form != FORMAT:
        raise _refused(path, f"a pack of format {FORMAT}", f"of format {form}")
    for name in (PROGRAM, WEIGHTS, KERNELS):
        digest = hashlib.sha256(parts.get(name, b"")).hexdigest()
        if name not in parts or digest != digests.get(name):
            raise _refused(path, "a complete pack that `lc.pack` wrote", f"whose {name} is damaged")
    return about, parts


def weights_of(content: bytes) -> dict[str, Tensor]:
    """Return the weights of a pack, on the CPU."""
    found: dict[str, Tensor] = torch.load(
        io.BytesIO(content), map_location="cpu", weights_only=True
    )
    return found


def _refused(path: str | Path, expected: str, got: str) -> ArgumentError:
    return ArgumentError("path", expected, f"{path}, {got}")
