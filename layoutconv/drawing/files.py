"""Write pictures to files."""

from __future__ import annotations

import os
from pathlib import Path

from ..base.paths import file_name_of


def write(path: str | os.PathLike[str], content: str | bytes) -> None:
    """Write a picture, text in UTF-8; an ``OSError`` names the file, also if the disk is full."""
    try:
        Path(file_name_of(path)).write_bytes(
            content.encode() if isinstance(content, str) else content
        )
    except OSError as error:  # for a full disk, it does not name the file
        error.filename = error.filename or os.fspath(path)
        raise
