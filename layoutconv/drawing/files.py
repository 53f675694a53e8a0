"""Pictures on disk."""

from __future__ import annotations

import os
from pathlib import Path

from ..base.paths import file_name_of


def write(path: str | os.PathLike[str], content: str | bytes) -> None:
    """Write a picture, text in UTF-8; an ``OSError`` says which file, also of a full disk."""
    try:
        Path(file_name_of(path)).write_bytes(
            content.encode() if isinstance(content, str) else content
        )
    except OSError as error:  # of a full disk, it does not say which file
        error.filename = error.filename or os.fspath(path)
        raise
