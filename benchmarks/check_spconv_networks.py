"""Run real networks through spconv's CPU wheel and through layoutconv, and compare what they say.

    python benchmarks/check_spconv_networks.py CHECKOUTS

CHECKOUTS is a folder with the sources of OpenPCDet, mmdetection3d, Pointcept, CenterPoint,
VoxelNeXt, FocalsConv, LargeKernel3D, SoftGroup, SPFormer, oneformer3d, ISBNet and 2DPASS, each
under its name; nothing of them has to be installed or edited. Their model files import spconv: in
one process that is spconv itself, in another layoutconv under its name, and one loads the state
dict that the other has saved. Both compute in fp32. An error is over the largest number of its
tensor; gradients are of features and of all weights. Where rounding lets another number through a
ReLU on one side, gradients are of another function: then they are compared in the next scene, and
outputs in both.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
from benchmark_options import program
from framework_files import Frameworks
from framework_parts import parts
from real_networks import FOLDERS, NETWORKS, Network, packages
from spconv_agreement import Agreement, Run, agreement, run, same_signs
from spconv_reference import reference

LIMIT = 1e-4
SCENES = 12
SIDES = ("layoutconv", "spconv")


def side(name: str, checkouts: Path, folder: Path, numbers: list[int], seed: int) -> None:
    """Run networks of one project in this process, as one side, and save what they say."""
    torch.set_num_threads(1)
    if name == "spconv":
        reference()
    else:
        from layoutconv.compat.spconv import install

        install()
    project = NETWORKS[numbers[0]].project
    Frameworks(packages(project, checkouts), parts()).install()
    # Files move to a GPU whatever there is.
    for kind in (torch.Tensor, torch.nn.Module):
        kind.cuda = lambda self, *args, **options: self  # type: ignore[method-assign, assignment]
    for number in numbers:
        saved = folder / f"{number}-state.pt"
        state = torch.load(saved) if saved.is_file() else None
        found, state = one(NETWORKS[number], seed, state)
        torch.save(state, saved)
        torch.save(tuple(found), folder / f"{number}-{name}.pt")


def one(network: Network, seed: int, state: Any = None) -> tuple[Run, Any]:
    """Results of a network on a scene, and the state dict that it had."""
    torch.manual_seed(0)
    scene = network.scene(seed)
    features = scene.features.requires_grad_()
    net = network.build(scene)
    if state is None:
        with torch.no_grad():  # nothing is zero, and nothing the identity
            for parameter in net.parameters():
                parameter.add_(torch.randn_like(parameter) * 0.02)
        state = net.state_dict()
        for key in state:
            state[key] = state[key].clone()
    net.load_state_dict(state)
    if not network.trains:
        # In evaluation spconv has no gradient of a bias: its convolutions alone are in training.
        for module in net.modules():
            module.training = hasattr(module, "fp32_accum")
    torch.manual_seed(seed)  # whatever a forward pass draws
    return run(network_call(network, net), scene, features=[features]), state


class network_call(torch.nn.Module):
    """A network as a function of a scene, whose parameters are the network's."""

    def __init__(self, network: Network, net: torch.nn.Module) -> None:
        super().__init__()
        self.net, self._call = net, network.call

    def forward(self, scene: Any) -> Any:
        return self._call(self.net, scene)


def compare(checkouts: Path, numbers: list[int]) -> dict[int, Agreement]:
    """Errors of networks of one project, by their numbers; of outputs, the largest in any scene."""
    found: dict[int, Agreement] = {}
    with tempfile.TemporaryDirectory() as name:
        folder, left = Path(name), list(numbers)
        for seed in range(SCENES):
            for each in SIDES:
                command = [sys.executable, __file__, str(checkouts), "--side", each]
                command += ["--folder", name, "--seed", str(seed), "--numbers", *map(str, left)]
                subprocess.run(command, check=True)
            for number in tuple(left):
                ours, theirs = (Run(*torch.load(folder / f"{number}-{each}.pt")) for each in SIDES)
                now, before = agreement(ours, theirs), found.get(number)
                outputs = max(now.outputs, before.outputs if before else 0.0)
                found[number] = now._replace(outputs=outputs)
                if same_signs(ours, theirs):
                    left.remove(number)
            if not left:
                break
    return found


def show(network: Network, found: Agreement) -> None:
    good = "agrees" if max(found) <= LIMIT else "DIFFERS"
    errors = " | ".join(f"{error:.1e}" for error in found)
    print(f"| {network.project} | {network.name} | {errors} | {good} |", flush=True)


def main() -> None:
    parser = program(__doc__)
    parser.add_argument("checkouts", type=Path, help="the folder of the frameworks' sources")
    parser.add_argument("--project", choices=FOLDERS, help="one of them")
    parser.add_argument("--only", default="", help="networks with this in their name")
    parser.add_argument("--json", type=Path, help="where to write the errors")
    for name, kind in (("side", str), ("folder", Path), ("seed", int)):
        parser.add_argument(f"--{name}", type=kind, help=argparse.SUPPRESS)
    parser.add_argument("--numbers", type=int, nargs="*", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.side:
        of = options.checkouts, options.folder, options.numbers, options.seed
        side(options.side, *of)
        return
    print("| project | network | outputs | gradient of features | of weights | |")
    print("| --- | --- | --- | --- | --- | --- |")
    rows = []
    for project in [options.project] if options.project else FOLDERS:
        chosen = [
            number
            for number, network in enumerate(NETWORKS)
            if network.project == project and options.only in network.name
        ]
        for number, errors in compare(options.checkouts, chosen).items() if chosen else ():
            show(NETWORKS[number], errors)
            rows.append({"network": NETWORKS[number].name, "project": project, **errors._asdict()})
            rows[-1]["agrees"] = max(errors) <= LIMIT
    good = sum(row["agrees"] for row in rows)
    print(f"{good} of {len(rows)} networks agree: no error over {LIMIT:g} of the largest number")
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1))
    sys.exit(good != len(rows))


if __name__ == "__main__":
    main()
