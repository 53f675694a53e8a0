"""Packed channels: copy few channels once, so that kernels read longer vectors.

Kernels read three channels of fp16 one number at a time. Copied to four channels, or with all taps
along W of a voxel next to each other, they form vectors of 8 or 16 bytes, so there are fewer loads.
The padding is zero in both the activation and the filter, so no infinity meets a zero that the
convolution does not have.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

from .problem import ConvProblem


class LinePacking(NamedTuple):
    """Lines of memory to copy position by position.

    From a line of ``length`` elements, position ``p`` gets the ``used`` elements from ``start + p *
    step`` on, zeros where these are out of the line, and zeros up to its ``width``.
    """

    length: int
    positions: int
    step: int
    start: int
    used: int
    width: int

    @classmethod
    def resized(cls, used: int, width: int) -> LinePacking:
        """Return the packing that extends lines with zeros, or shortens them.

        >>> LinePacking.resized(3, 4)
        LinePacking(length=3, positions=1, step=0, start=0, used=3, width=4)
        """
        return cls(used, 1, 0, 0, min(used, width), width)

    def elements(self, read: int) -> int:
        """Return the number of elements written when ``read`` elements are read."""
        return read // self.length * self.positions * self.width


class PackedProblem(NamedTuple):
    """A convolution of packed operands, with the same output.

    ``activation`` and ``filter`` say how to pack their lines; None if memory stays, in another
    shape. ``unpacked`` says how to shorten lines of the filter's gradient.
    """

    problem: ConvProblem
    activation: LinePacking | None = None
    filter: LinePacking | None = None
    unpacked: LinePacking | None = None


def with_channels(problem: ConvProblem, channels: int) -> PackedProblem:
    """Return the convolution with zero channels added to the activation, ``channels`` in all.

    >>> found = with_channels(ConvProblem((2, 8, 8, 3), (64, 3, 3), padding=1), 4)
    >>> found.problem.activation, found.activation.width, found.unpacked.width
    ((2, 8, 8, 4), 4, 3)
    """
    return PackedProblem(
        replace(problem, activation=(*problem.activation[:-1], channels)),
        LinePacking.resized(problem.C, channels),
        LinePacking.resized(problem.C, channels),
        LinePacking.resized(channels, problem.C),
    )


def with_taps_as_channels(problem: ConvProblem, channels: int) -> PackedProblem:
    """Return the convolution of an activation whose channels hold all taps along W of a voxel.

    ``channels`` is at least taps times C. The dilation along W is 1.

    >>> found = with_taps_as_channels(ConvProblem((2, 8, 9, 3), (64, 3, 3), 2, 1), 16)
    >>> found.problem.activation, found.problem.taps, found.problem.stride
    ((2, 8, 5, 16), (3, 1), (2, 1))
    >>> found.activation
    LinePacking(length=27, positions=5, step=6, start=-3, used=9, width=16)
    """
    C, S = problem.C, problem.taps[-1]
    (near, _), step, Q = problem.padding[-1], problem.stride[-1], problem.output_spatial[-1]
    return PackedProblem(
        _without_taps(problem, Q, channels),
        LinePacking(problem.spatial[-1] * C, Q, step * C, -near * C, S * C, channels),
        LinePacking.resized(S * C, channels),
        LinePacking.resized(channels, S * C),
    )


def _without_taps(problem: ConvProblem, cells: int, channels: int) -> ConvProblem:
    """Return the problem with one tap along W, and ``cells`` cells of ``channels`` channels."""
    return ConvProblem(
        (problem.N, *problem.spatial[:-1], cells, channels),
        (*problem.filter[:-1], 1),
        (*problem.stride[:-1], 1),
        (*problem.padding[:-1], (0, 0)),
        (*problem.dilation[:-1], 1),
    )


def packings(problem: ConvProblem, vector: int, line: int, least: int) -> Iterator[PackedProblem]:
    """Yield ways to pack the channels of an activation, if they are no multiple of a vector.

    Args:
        vector: elements in 16 bytes.
        line: channels that TMA needs a multiple of.
        least: elements of the shortest vector that cp.async copies.

    >>> stem = ConvProblem((2, 224, 224, 3), (64, 7, 7), 2, 3)
    >>> [found.problem.activation[-2:] for found in packings(stem, 8, 32, 2)]
    [(224, 4), (224, 8), (112, 24), (112, 32)]
    """
    C, taps = problem.C, problem.taps[-1]
    if C % vector == 0 or problem.groups > 1:
        return
    power = max(least, 1 << (C - 1).bit_length())
    widths = {power} if power < vector else set()
    for channels in sorted(widths | {-(-C // vector) * vector}):
        if channels != C:
            yield with_channels(problem, channels)
    if taps > 1 and problem.dilation[-1] == 1 and taps * C <= 2 * line:
        for channels in sorted({-(-taps * C // unit) * unit for unit in (vector, line)}):
            yield with_taps_as_channels(problem, channels)


def exchanged(problem: ConvProblem) -> ConvProblem | None:
    """Return the convolution whose wgrad is this one's with reversed taps and K and C exchanged:
    its activation is the gradient of the output, its output the activation.

    That wgrad sums over cells of the activation, reads each cell once, and reads the few output
    channels at all taps. None with strides, groups, or padding beyond the filter.

    Padding zeros now multiply the other operand. An infinity at the border of the activation makes
    other elements of the gradient NaN (some are infinite or NaN in either form); an infinity in the
    output's gradient meets no zeros.

    >>> head = ConvProblem((2, 8, 8, 96), (3, 3, 3), padding=1)
    >>> exchanged(head).activation, exchanged(head).output
    ((2, 8, 8, 3), (2, 8, 8, 96))
    """
    spans = zip(problem.spans, problem.padding, strict=True)
    sides = [(span - 1 - near, span - 1 - far) for span, (near, far) in spans]
    if problem.groups > 1 or max(problem.stride) > 1 or min(map(min, sides)) < 0:
        return None
    filter = (problem.C, *problem.taps)
    return ConvProblem(problem.output, filter, 1, sides, problem.dilation)
