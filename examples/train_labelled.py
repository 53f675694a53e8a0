"""Train a MinkUNet on a published data set: metrics, checkpoints, mixed precision, several GPUs.

    python examples/train_labelled.py FOLDER --epochs 10 --checkpoint run.pt --page scan.html
    python examples/train_labelled.py FOLDER --epochs 10 --resume run.pt
    torchrun --nproc-per-node 2 examples/train_labelled.py FOLDER --amp bfloat16

FOLDER contains SemanticKITTI, nuScenes (with lidarseg) or ScanNet, as published; nothing is
downloaded. A ``DataLoader`` reads and voxelizes scans in ``--workers`` processes,
``lc.sparse.collate`` joins them with the voxel of each point, and the loss is a mean over the
points of all ranks.

``--resume`` continues a stopped run with the same result as an uninterrupted one: the order of an
epoch and the rotation of each scan depend only on the epoch's number. After each epoch the network
is tested on the validation split: accuracy, and the IoU of each class. ``--page`` writes the first
of these scans with its labels and its prediction as an HTML page.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # 10 times as fast where others use the cores

import argparse
import math
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from minkunet_segmentation import MinkUNet, inputs, turned
from support.command_line import new_file, positive_float, positive_int, program, whole_int
from support.processes import end, start
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset
from torch.utils.data.distributed import DistributedSampler

import layoutconv as lc
from layoutconv.distributed import mean_over_ranks
from layoutconv.sparse import LabelledClouds, Voxels, labelled_clouds

_COUNTED = 20  # scans that say how frequent classes are
Batch = tuple[Voxels, Tensor]


class Scans(Dataset[Batch]):
    """Scans as voxels, and the class of each point; for training, turned anew in each epoch."""

    def __init__(self, found: LabelledClouds, voxel_size: float, *, turn: bool) -> None:
        self.found, self.voxel_size, self.turn, self.epoch = found, voxel_size, turn, 0

    def __len__(self) -> int:
        return len(self.found)

    def __getitem__(self, at: int) -> Batch:
        points, target = tensors(self.found, at)
        if self.turn:
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(len(self) * self.epoch + at)
                points = turned(points)
        return inputs(points, self.voxel_size), target


def tensors(found: LabelledClouds, at: int) -> tuple[Tensor, Tensor]:
    """A scan as float32 (points, 4), x, y, z and brightness from 0 to 1, and its labels."""
    scan = found[at]
    if scan.labels is None:
        raise ValueError(f"{found!r}: {scan.name} has no labels")
    points = torch.from_numpy(scan.points)
    bright = points[:, 3:6].mean(1) / 255 if "red" in found.columns else points[:, 3]
    if "intensity" in found.columns:
        bright = bright / 255
    return torch.cat([points[:, :3], bright[:, None]], dim=1), torch.from_numpy(scan.labels)


def joined(scans: Sequence[Batch]) -> Batch:
    """Scans as the images of one batch, and the classes of all their points, one after another."""
    voxels = lc.sparse.collate([voxels for voxels, _ in scans])
    assert isinstance(voxels, Voxels)
    return voxels, torch.cat([target for _, target in scans])


class Run:
    """A network that is trained, with all that a checkpoint has to keep of it."""

    def __init__(self, classes: int, options: argparse.Namespace, device: torch.device) -> None:
        self.options, self.device, self.epoch = options, device, 0
        self.losses: list[float] = []  # of epochs
        torch.manual_seed(0)
        net: nn.Module = MinkUNet(5, classes, options.width, options.stages).to(device)
        if dist.is_initialized() and device.type == "cuda":
            net = nn.SyncBatchNorm.convert_sync_batchnorm(net)
        self.net = net
        self.model = DistributedDataParallel(net) if dist.is_initialized() else net
        self.optimizer = torch.optim.AdamW(net.parameters(), lr=0.0)
        self.scaler = torch.amp.GradScaler(device.type, enabled=options.amp == "float16")

    def scores(self, voxels: Voxels) -> Tensor:
        """The scores of points, float32 (points, classes)."""
        kind = torch.bfloat16 if self.options.amp == "none" else getattr(torch, self.options.amp)
        with torch.autocast(self.device.type, kind, enabled=self.options.amp != "none"):
            found = self.model(voxels)
        return lc.devoxelize(voxels.replace(found.features.float()))

    def step(self, batch: Batch, weight: Tensor, done: float) -> float:
        """One step, at a share of the run that is ``done``; the loss of this rank's points."""
        voxels, target = batch[0].to(self.device), batch[1].to(self.device)
        losses = cross_entropy(self.scores(voxels), target, weight, reduction="none")
        loss = mean_over_ranks(losses[target >= 0])
        for group in self.optimizer.param_groups:  # warm up for a tenth, then a cosine to zero
            rise = min(1.0, 10 * done)
            group["lr"] = self.options.rate * max(rise, 0.05) * (1 + math.cos(math.pi * done)) / 2
        self.optimizer.zero_grad()
        self.scaler.scale(loss).backward()
        self.scaler.step(self.optimizer)
        self.scaler.update()
        return loss.item()

    def kept(self) -> dict[str, Any]:
        """The content of a checkpoint: tensors and numbers, which load without running code."""
        return {
            "net": self.net.state_dict(), "optimizer": self.optimizer.state_dict(),
            "scaler": self.scaler.state_dict(), "epoch": self.epoch, "losses": self.losses,
        }  # fmt: skip

    def save(self, path: Path) -> None:
        """Write a checkpoint beside the last one, then in its place: one of them is whole."""
        part = path.with_name(f"{path.name}.part")
        torch.save(self.kept(), part)
        part.replace(path)

    def load(self, path: Path) -> None:
        """Go on where a checkpoint was written.

        Raises ``ValueError`` for a damaged one, for what is none, and for one of another network.
        """
        with path.open("rb") as file:
            try:
                found = torch.load(file, map_location=self.device, weights_only=True)
            except Exception as error:  # of a damaged file torch raises nearly anything
                told = f"expected a whole checkpoint, got {type(error).__name__}"
                raise ValueError(f"{path}: {told} as it was read") from error
        for key, value in self.kept().items():
            if not isinstance(found, dict) or not isinstance(found.get(key), type(value)):
                raise ValueError(f"{path}: expected a checkpoint with {', '.join(self.kept())}")
        if not 0 <= found["epoch"] == len(found["losses"]):
            raise ValueError(f"{path}: expected a loss of each of its epochs")
        try:
            self.net.load_state_dict(found["net"])
            self.optimizer.load_state_dict(found["optimizer"])
        except (RuntimeError, ValueError, LookupError) as error:
            told = "of a network with these classes, --width and --stages"
            raise ValueError(f"{path}: expected a checkpoint {told}") from error
        self.scaler.load_state_dict(found["scaler"])
        self.epoch, self.losses = found["epoch"], found["losses"]


def frequencies(found: LabelledClouds) -> Tensor:
    """Weights of classes, by the root of how many points the first scans have: 1 for a point,
    on average; a class that they lack counts as the rarest.

    Raises ``ValueError`` where none of them has a labelled point.
    """
    counts = torch.zeros(len(found.classes), dtype=torch.int64)
    for at in range(min(len(found), _COUNTED)):
        _, target = tensors(found, at)
        counts += torch.bincount(target[target >= 0], minlength=len(counts))
    if not counts.any():
        raise ValueError(f"{found!r}: no point of the first scans is labelled as a class")
    weight = counts.clamp(min=max(1, int(counts[counts > 0].min()))).float().rsqrt()
    return weight * counts.sum() / (weight * counts).sum()


def loader(scans: Scans, options: argparse.Namespace, *, shuffle: bool) -> DataLoader[Batch]:
    """Batches of this rank's scans; of training, in an order that follows from the epoch."""
    rank, ranks = place()
    sampler: DistributedSampler[Batch] = DistributedSampler(scans, ranks, rank, shuffle)
    sampler.set_epoch(scans.epoch)
    return DataLoader(
        scans, options.batch, sampler=sampler, num_workers=options.workers, collate_fn=joined
    )


def place() -> tuple[int, int]:
    """The number of this process, and how many there are."""
    return (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)


def train_epoch(run: Run, scans: Scans, weight: Tensor) -> float:
    """All scans once; the mean loss of the steps, over all ranks."""
    scans.epoch = run.epoch
    batches = loader(scans, run.options, shuffle=True)
    run.model.train()
    total, steps = torch.zeros((), dtype=torch.float64), len(batches)
    for at, batch in enumerate(batches):
        done = (run.epoch + at / steps) / run.options.epochs
        total += run.step(batch, weight, done)
    total = total.to(run.device)
    if dist.is_initialized():
        dist.all_reduce(
            total, dist.ReduceOp.AVG if run.device.type == "cuda" else dist.ReduceOp.SUM
        )
        total /= 1 if run.device.type == "cuda" else place()[1]
    run.epoch += 1
    return float(total) / steps


@torch.no_grad()
def confusion(run: Run, found: LabelledClouds) -> Tensor:
    """Count points of a class (row) that were taken for each (column), over all ranks."""
    rank, ranks = place()
    classes = len(found.classes)
    counts = torch.zeros(classes**2, dtype=torch.int64, device=run.device)
    scans = Scans(found, run.options.voxel_size, turn=False)
    run.net.eval()
    for at in range(rank, len(scans), ranks):
        predicted, target = prediction(run, scans[at])
        counts += torch.bincount(classes * target + predicted, minlength=len(counts))
    if dist.is_initialized():
        dist.all_reduce(counts)
    return counts.view(classes, classes).cpu()


def prediction(run: Run, batch: Batch) -> tuple[Tensor, Tensor]:
    """The class of each labelled point as predicted, and as labelled."""
    model, run.model = run.model, run.net  # ranks have other numbers of scans
    try:
        predicted = run.scores(batch[0].to(run.device)).argmax(1)
    finally:
        run.model = model
    target = batch[1].to(run.device)
    return predicted[target >= 0], target[target >= 0]


def told(counts: Tensor, classes: Sequence[str]) -> Iterator[str]:
    """Accuracy, mean IoU, and the IoU of each class that there is."""
    right = counts.diagonal()
    union = counts.sum(0) + counts.sum(1) - right
    there = union > 0
    yield f"accuracy  {right.sum() / counts.sum().clamp(min=1):.1%} of labelled points"
    yield f"mean IoU  {(right[there] / union[there]).mean():.1%} of {int(there.sum())} classes"
    for name, of, iou in zip(classes, union, right / union.clamp(min=1), strict=True):
        yield f"          {name:22s} {iou:.1%}" if of else f"          {name:22s} not there"


def write_page(run: Run, found: LabelledClouds, path: Path) -> None:
    """The first scan in three dimensions: prediction, labels, and where they differ."""
    from layoutconv.drawing import cloud_page

    points, target = tensors(found, 0)
    with torch.no_grad():
        predicted, labelled = prediction(run, (inputs(points, run.options.voxel_size), target))
    if not len(labelled):
        raise ValueError(f"{found!r}: no point of {found.names[0]} is labelled as a class")
    wrong = (predicted != labelled).float()
    values = {"prediction": predicted.cpu(), "labels": labelled.cpu(), "wrong": wrong.cpu()}
    cloud_page(points[target >= 0], values, path, classes=found.classes, title=found.names[0])


@contextmanager
def processes(choice: str) -> Iterator[torch.device]:
    """The device of this process, among those that torchrun has started."""
    device = start(choice)
    yield device
    end()


def main(arguments: Sequence[str] | None = None) -> int:
    """Train and test; 0, or 1 where the loss did not fall, or 2 for what makes no sense."""
    options = _options(arguments)
    try:
        with processes(options.device) as device:
            return 0 if _main(options, device) else 1
    except (ValueError, OSError, ImportError) as error:
        print(f"train_labelled: error: {error}", file=sys.stderr)
        return 2


def _main(options: argparse.Namespace, device: torch.device) -> bool:
    found, tested = (labelled_clouds(options.folder, split) for split in ("train", "val"))
    first = place()[0] == 0
    run = Run(len(found.classes), options, device)
    if options.resume:
        run.load(options.resume)
    checkpoint = options.checkpoint or options.resume
    if first:
        print(f"MinkUNet on {found!r}, {place()[1]} x {device.type}, from epoch {run.epoch}")
    weight = frequencies(found).to(device)
    scans, counts = Scans(found, options.voxel_size, turn=True), None
    while run.epoch < options.epochs:
        run.losses.append(train_epoch(run, scans, weight))
        if checkpoint and first:
            run.save(checkpoint)
        counts = confusion(run, tested)
        if first:
            accuracy, iou, *_ = told(counts, found.classes)
            print(f"  epoch {run.epoch:3d}  loss {run.losses[-1]:.3f}, {accuracy}, {iou}")
    if counts is None:  # all epochs were in the checkpoint
        counts = confusion(run, tested)
    if first:
        print("\n".join(f"  {line}" for line in told(counts, found.classes)))
        if options.page:
            write_page(run, tested, options.page)
            print(f"  page      {options.page}")
    fell = math.isfinite(run.losses[-1]) and (len(run.losses) < 2 or run.losses[-1] < run.losses[0])
    if first:
        print(f"  check     loss {run.losses[0]:.3f} to {run.losses[-1]:.3f}", end=", ")
        print("ok" if fell else "FAILED")
    return fell


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = program(__file__, __doc__, "FOLDER --epochs 10 --checkpoint run.pt", device="auto")
    add = parser.add_argument
    add("folder", type=Path, help="of the data set")
    add("--epochs", type=positive_int, default=2, metavar="N", help="of the whole run")
    add("--batch", type=positive_int, default=2, metavar="N", help="scans in a step of a process")
    add(
        "--workers", type=whole_int, default=0, metavar="N", help="processes that read and voxelize"
    )
    add("--rate", type=positive_float, default=0.01, help="of learning, at most")
    add("--voxel-size", type=positive_float, default=0.1, metavar="M", help="edge of a voxel")
    add("--width", type=positive_int, default=16, metavar="C", help="channels of the finest stage")
    add("--stages", type=positive_int, default=4, metavar="N", help="how often the grid is halved")
    add("--amp", choices=("none", "bfloat16", "float16"), default="none", help="mixed precision")
    add("--checkpoint", type=new_file, metavar="FILE", help="written after each epoch")
    add("--resume", type=Path, metavar="FILE", help="a checkpoint to go on from")
    add("--page", type=new_file, metavar="FILE", help="HTML of a scan, labels and prediction")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
