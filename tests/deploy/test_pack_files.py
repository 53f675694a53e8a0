"""The file of a pack: whole or refused, of this version, for this GPU and this processor."""

from __future__ import annotations

import copy
import io
import json
import os
import pickle
import stat
import zipfile
from dataclasses import asdict
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch

import layoutconv as lc
from layoutconv.deploy import packed_network
from layoutconv.deploy.pack_file import KERNELS, MANIFEST, PROGRAM, WEIGHTS, read_pack, write_pack
from layoutconv.deploy.program import exported
from layoutconv.errors import ArgumentError
from layoutconv.kernels.compile import toolchains
from layoutconv.planning.machine import MACHINES

from ..stand_ins import Gpu
from ..watched import Watch

NET = torch.nn.Linear(4, 3).eval()
X = torch.ones(2, 4)
ARCH = "sm_90a"


def written(path: Path, **other: Any) -> Path:
    """A pack of a network that asks for no kernel; ``other`` is of its manifest."""
    program, weights = exported(NET, (X,))
    toolchain, processor = toolchains.compiled_with()
    about = {
        "layoutconv": lc.__version__, "arch": ARCH, "kernels": {},
        "host": {"machine": packed_network.platform.machine(), "flags": []},
        "toolchain": toolchain, "processor": processor, "planned_for": asdict(MACHINES[ARCH]),
        "choices": {"format": 1, "measured": {}}, **other,
    }  # fmt: skip
    write_pack(path, about, program, weights, b"")
    return path


def test_it_is_read_as_it_was_written(tmp_path: Path) -> None:
    path = written(tmp_path / "net.pack")
    net = lc.load_pack(path, "cpu")
    assert torch.equal(net(X), NET(X))
    assert not net(X).requires_grad
    assert repr(net) == "PackedNetwork(input) of 0 kernels for sm_90a, on cpu"
    assert list(tmp_path.iterdir()) == [path]
    if os.name == "posix":
        mask = os.umask(0)
        os.umask(mask)
        assert stat.S_IMODE(path.stat().st_mode) == 0o666 & ~mask  # servers of other users read it
    with zipfile.ZipFile(path) as archive:
        assert archive.namelist() == [MANIFEST, PROGRAM, WEIGHTS, KERNELS]


def test_a_network_of_a_pack_says_that_it_belongs_to_its_process(tmp_path: Path) -> None:
    net = lc.load_pack(written(tmp_path / "net.pack"), "cpu")
    for copied in (copy.deepcopy, copy.copy, pickle.dumps, lambda x: torch.save(x, io.BytesIO())):
        with pytest.raises(
            TypeError, match=r"PackedNetwork cannot be pickled or copied, .* load_pack"
        ):
            copied(net)


def test_a_pack_keeps_its_precision_under_autocast(tmp_path: Path) -> None:
    """Kernels of another dtype are not in it."""
    net = lc.load_pack(written(tmp_path / "net.pack"), "cpu")
    want = net(X)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(net(X), want)
        assert NET(X).dtype == torch.bfloat16


def test_every_damaged_byte_is_seen(tmp_path: Path) -> None:
    """One in a hundred is tried, in whatever part it is."""
    path = written(tmp_path / "net.pack")
    whole = path.read_bytes()
    about, parts = read_pack(path)
    messages = []
    for at in range(0, len(whole), 97):
        damaged = bytearray(whole)
        damaged[at] ^= 0x10
        path.write_bytes(damaged)
        try:
            same = read_pack(path)
        except ArgumentError as error:
            messages.append(str(error))
            continue
        assert same == (about, parts)  # a byte that says nothing: the date of a part, say
    assert all(text.startswith("argument `path`") and str(path) in text for text in messages)
    assert len(messages) > len(whole) // 97 * 0.8
    for length in (0, 10, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:length])
        with pytest.raises(ArgumentError, match=r"expected a complete pack that `lc.pack` wrote"):
            lc.load_pack(path, "cpu")


def test_a_pack_that_is_cut_is_no_pack(tmp_path: Path) -> None:
    """Its weights are a zip file themselves, whose end may be where it is cut."""
    path = written(tmp_path / "net.pack")
    whole = path.read_bytes()
    with zipfile.ZipFile(path) as archive:
        after = archive.getinfo(KERNELS).header_offset
    for length in (*range(1, len(whole), 997), after, after + 20):
        path.write_bytes(whole[:length])
        with pytest.raises(ArgumentError, match="which is not one: File is not a zip file"):
            read_pack(path)


def test_a_part_of_another_pack_is_refused(tmp_path: Path) -> None:
    """Its own checksums are right: what tells is the digest in the manifest."""
    path = written(tmp_path / "net.pack")
    with zipfile.ZipFile(path) as archive:
        parts = {name: archive.read(name) for name in archive.namelist()}
        comment = archive.comment
    for name, content in ((KERNELS, b"another library"), (MANIFEST, parts[MANIFEST] + b" ")):
        with zipfile.ZipFile(path, "w") as archive:
            archive.comment = comment
            for part, own in {**parts, name: content}.items():
                archive.writestr(part, own)
        with pytest.raises(
            ArgumentError,
            match=r"expected a complete pack .*(damaged|manifest was changed)",
        ):
            lc.load_pack(path, "cpu")
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.comment = comment
        for part, own in parts.items():
            archive.writestr(part, own)
    with pytest.raises(ArgumentError, match="packs are not compressed"):
        lc.load_pack(path, "cpu")


def test_another_version_is_refused(tmp_path: Path) -> None:
    path = written(tmp_path / "net.pack", layoutconv="0.0.9")
    with pytest.raises(
        ArgumentError, match=r"expected a pack of layoutconv 0\.1\.0, got .*0\.0\.9"
    ):
        lc.load_pack(path, "cpu")
    path = written(tmp_path / "net.pack", toolchain="nvidia-cutlass-dsl 4.8.1 0123abcd")
    with pytest.raises(
        ArgumentError, match=r"that these sources of layoutconv made, got .* that others made"
    ):
        lc.load_pack(path, "cpu")
    path = written(tmp_path / "net.pack", format=1)
    with pytest.raises(ArgumentError, match=r"expected a pack of format 2, got .* of format 1"):
        lc.load_pack(path, "cpu")


def test_another_gpu_or_processor_is_refused(tmp_path: Path, gpu: Gpu) -> None:
    gpu.like("sm_80")
    gpu.says(current_device=0, is_available=True)
    path = written(tmp_path / "net.pack")
    with pytest.raises(ArgumentError, match=r"a pack for sm_80, as this GPU is, .* for sm_90a"):
        lc.load_pack(path, "cuda")
    gpu.like(ARCH)
    host = {"machine": packed_network.platform.machine(), "flags": ["avx512_of_tomorrow"]}
    path = written(tmp_path / "net.pack", host=host)
    with pytest.raises(ArgumentError, match="one that may use avx512_of_tomorrow"):
        lc.load_pack(path, "cuda")
    path = written(tmp_path / "net.pack", host={"machine": "another", "flags": []})
    with pytest.raises(ArgumentError, match=r"expected a pack made on .* one made on another"):
        lc.load_pack(path, "cuda")


def test_what_cannot_be_packed(tmp_path: Path, watched: Watch, gpu: Gpu) -> None:
    compiled = watched("precompile", import_module("layoutconv.deploy.pack"))
    gpu.says(is_available=False)
    path = tmp_path / "net.pack"
    with pytest.raises(ArgumentError, match=r"`arch`: expected one of sm_80, .* no GPU here, got"):
        lc.pack(NET, X, path)
    with pytest.raises(ArgumentError, match=r"`arch`: expected one of sm_80, .* got 'sm_70'"):
        lc.pack(NET, X, path, arch="sm_70")
    with pytest.raises(TypeError, match=r"`example`: expected a tensor, or a tuple of tensors"):
        lc.pack(NET, [X, 3], path, arch=ARCH)
    for nothing, what in ((None, "NoneType"), (5, "int")):
        with pytest.raises(TypeError, match=rf"`path`: expected a path, .* got {what}"):
            lc.pack(NET, X, nothing, arch=ARCH)
        with pytest.raises(TypeError, match=rf"`path`: expected a path, .* got {what}"):
            lc.load_pack(nothing)
    with pytest.raises(FileNotFoundError, match=r"nowhere/net\.pack"):
        lc.pack(NET, X, tmp_path / "nowhere" / "net.pack", arch=ARCH)
    with pytest.raises(IsADirectoryError, match=str(tmp_path)):
        lc.pack(NET, X, tmp_path, arch=ARCH)
    with pytest.raises(TypeError, match=r"`net`: expected a torch.nn.Module, got NoneType"):
        lc.pack(None, X, path, arch=ARCH)  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match=r"`example`: expected at least one example"):
        lc.pack(NET, [], path, arch=ARCH)
    assert compiled == []  # nothing is compiled before
    assert not path.exists()


def test_devices_that_run_no_pack(tmp_path: Path, gpu: Gpu) -> None:
    path = written(tmp_path / "net.pack")
    gpu.says(is_available=False, device_count=0)
    with pytest.raises(ArgumentError, match=r"`device`: expected a GPU for cuda, got none: .*cpu"):
        lc.load_pack(path, "cuda")
    for other in ("tpu", "meta", 5.5):
        with pytest.raises(ArgumentError, match=r"`device`: expected cpu or cuda, got "):
            lc.load_pack(path, other)  # type: ignore[arg-type]


def test_weights_are_read_without_code(tmp_path: Path) -> None:
    """A pickle that would call something is refused, though all digests are right."""

    class Calls:
        def __reduce__(self) -> Any:
            return os.mkdir, (str(tmp_path / "called"),)

    program, weights = exported(NET, (X,))
    path = written(tmp_path / "net.pack")
    about, _ = read_pack(path)
    about = {name: value for name, value in about.items() if name not in ("format", "sha256")}
    write_pack(path, about, program, {**weights, "more": Calls()}, b"")  # type: ignore[dict-item]
    with pytest.raises(Exception, match="Weights only load failed"):
        lc.load_pack(path, "cpu")
    assert not (tmp_path / "called").exists()
    assert json.loads(zipfile.ZipFile(path).read(MANIFEST))["arch"] == ARCH


FIELDS = ("layoutconv", "arch", "kernels", "toolchain", "planned_for", "choices")


@pytest.mark.parametrize("odd", [None, 3, "x", [], {"a": 1}, True], ids=str)
@pytest.mark.parametrize("field", FIELDS)
def test_a_whole_file_with_another_field_is_answered_or_named(tmp_path, field, odd):
    path = written(tmp_path / "net.pack", **{field: odd})
    if (field, odd) in [("arch", "x"), ("kernels", []), ("kernels", {"a": 1})]:  # on a CPU
        assert torch.equal(lc.load_pack(path, "cpu")(X), NET(X))
        return
    with pytest.raises(ArgumentError, match=r"`path`: expected a (complete )?pack"):
        lc.load_pack(path, "cpu")


@pytest.mark.parametrize("content", [None, [], {}, [1, 2, 3], "x"], ids=str)
def test_a_whole_file_of_another_program_or_weights_is_named(tmp_path, content):
    about, parts = read_pack(written(tmp_path / "net.pack"))
    weights = {"weight": NET.weight, "bias": NET.bias}
    for program, tensors in ((content, weights), (json.loads(parts[PROGRAM]), {"other": X})):
        write_pack(tmp_path / "other.pack", about, program, tensors, b"")
        with pytest.raises(ArgumentError, match=r"`path`: expected a complete pack .*: other c"):
            lc.load_pack(tmp_path / "other.pack", "cpu")


@pytest.mark.parametrize(
    ("odd", "why"),
    [
        ({"processes": "x"}, "`processes`: expected an int >= 1, or None, got 'x'"),
        ({"processes": -1}, "`processes`: expected an int >= 1, or None, got -1"),
        (
            {"dynamic_shapes": 3},
            "`dynamic_shapes`: expected None, or .* of torch.export.export, got int",
        ),
        ({"path": "a\0b"}, "`path`: expected a path without a null character, got 'a.x00b'"),
    ],
)
def test_arguments_that_are_none_are_named_before_anything_is_exported(tmp_path, odd, why):
    with pytest.raises(ArgumentError, match=why):
        lc.pack(**({"net": NET, "example": X, "path": tmp_path / "a.pack", "arch": ARCH} | odd))
    assert not list(tmp_path.iterdir())


def test_what_no_device_is_and_no_file_has_is_named(tmp_path):
    with pytest.raises(ArgumentError, match="`device`: expected cpu or cuda, got"):
        lc.load_pack(written(tmp_path / "net.pack"), 1 << 70)
    with pytest.raises(ArgumentError, match="`path`: expected a path without a null character"):
        lc.load_pack("a\0b")
