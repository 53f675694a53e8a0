r"""Why a composition is exact or not: the carries of a layout.

A layout with leaves ``a0, a1, ... : d0, d1, ...`` is, as a function of *every* integer n (the last
leaf is unbounded), with the places ``W_i = a0 * ... * a_(i-1)``,

    A(n) = d0 * n + sum over i >= 1 of  g_i * floor(n / W_i),     g_i = d_i - a_(i-1) * d_(i-1)

because digit i of n is ``floor(n / W_i) - a_i * floor(n / W_(i+1))``. In normal form no ``g_i`` is
zero. The floors hold everything about A that is not linear: A differs from linear exactly where a
sum *carries* across a place W_i. With residues mod W_i (Python's, never negative),

    floor((p + q) / W) = floor(p / W) + floor(q / W) + [p mod W + q mod W >= W]

so with ``carry_i(x)`` the number of carries into place i of the sum ``d_1 x_1 + ... + d_m x_m``,

    A(d_1 x_1 + ... + d_m x_m)  =  A(d_1 x_1) + ... + A(d_m x_m)  +  sum_i g_i * carry_i(x).   (*)

A composition A o B needs a layout R whose shape refines that of B. A layout is a sum over its
modes, so every stride of R is forced: it is A at the step of that mode. Two questions remain, and
both have exact answers:

1. *Which modes?* On one leaf ``s:d`` of B the function is ``f(x) = A(d * x)``. Let e be the first x
   at which f leaves the line ``x * f(1)``. Then f is a layout of s coordinates if and only if e
   divides s and the rest continues as a layout: a coalesced layout breaks for the first time
   exactly at the end of its first mode. :func:`split` follows the breaks; :func:`first_break` finds
   each of them from the floors in (*), without walking through the coordinates.

2. *Do the modes add up?* They do if and only if ``sum_i g_i * carry_i`` is zero on the whole box.
   If the largest residues of all modes sum to less than W_i for every i, nothing carries and it is
   zero. Otherwise some place carries; :func:`clash` then looks for a coordinate at which the
   weighted sum of carries is not zero. It tries the corners first, and walks through the residues
   only if those cancel: carries of several places may cancel everywhere, and then the composition
   is still exact. (``(2,2,2):(1,3,5) o 3:3`` is ``3:4``: both places carry, with weights 1 and -1.)

A step may have several components, one for each mode of A that B's scaled bases reach. Each
component carries in its own places, and the weights add up.
"""

from __future__ import annotations

from math import gcd, lcm
from typing import NamedTuple

from .budget import Budget

Step = tuple[int, ...]  # one integer for each component


class Carry(NamedTuple):
    """A place of one component at which a sum carries, and the weight that each carry adds."""

    component: int
    place: int
    weight: int


class LeafModes(NamedTuple):
    """The modes ``(extent, step)`` of one leaf, and where they break off if they do."""

    modes: list[tuple[int, Step]]
    broken_at: int | None


def carries_of(leaves: list[tuple[int, int]], component: int = 0) -> list[Carry]:
    """Return the carries of a layout in normal form with integer strides."""
    result = []
    place, last = 1, None
    for extent, stride in leaves:
        if last is not None and stride != last:
            result.append(Carry(component, place, stride - last))
        place *= extent
        last = extent * stride
    return result


def first_break(carries: list[Carry], step: Step, size: int, budget: Budget) -> int:
    """Return the first x at which A(step * x) differs from x * A(step); ``size`` if none does."""
    floors = []
    for component, place, weight in carries:
        residue = step[component] % place
        if residue:
            floors.append((residue, place, weight))
    x = 0
    while floors:
        # The next x at which any of the floors of x * residue / place steps up.
        x = min(-(-(x * r // w + 1) * w // r) for r, w, _ in floors)
        if x >= size:
            return size
        budget.spend(len(floors))
        if sum([g * (x * r // w) for r, w, g in floors]):
            return x
    return size


def split(carries: list[Carry], step: Step, size: int, budget: Budget) -> LeafModes:
    """Return the only possible modes of ``x -> A(step * x)``, x < size."""
    modes: list[tuple[int, Step]] = []
    done = 1
    while True:
        extent = first_break(carries, step, size, budget)
        if size % extent:
            return LeafModes([*modes, (size, step)], extent * done)
        modes.append((extent, step))
        if extent == size:
            return LeafModes(modes, None)
        size //= extent
        done *= extent
        step = tuple([extent * s for s in step])


def clash(carries: list[Carry], modes: list[tuple[int, Step]], budget: Budget) -> list[int] | None:
    """Return a coordinate of ``modes`` at which their sum and A differ; None if there is none."""
    at_risk = [c for c in carries if _residues_reach(c, modes)]
    if not at_risk:
        return None
    corners = [[extent - 1 for extent, _ in modes]]
    corners += [[_largest_residue(s[c], e, w)[1] for e, s in modes] for c, w, _ in at_risk]
    for corner in corners:
        if _weighted_carries(at_risk, modes, corner):
            return corner
    return _search(at_risk, modes, budget)


def _residues_reach(carry: Carry, modes: list[tuple[int, Step]]) -> bool:
    component, place, _ = carry
    total = 0
    for extent, step in modes:
        total += _largest_residue(step[component], extent, place)[0]
        if total >= place:
            return True
    return False


def _largest_residue(step: int, extent: int, place: int) -> tuple[int, int]:
    """Return the largest ``step * x % place`` for x < extent, and an x that attains it.

    >>> _largest_residue(3, 5, 7), _largest_residue(5, 4, 8)
    ((6, 2), (7, 3))
    """
    step %= place
    if step * (extent - 1) < place:
        return step * (extent - 1), extent - 1
    common = gcd(step, place)
    period = place // common
    if extent >= period:  # all multiples of the gcd occur
        return place - common, pow(step // common, -1, period) * (period - 1) % period
    return _record(step, extent - 1, place)


def _record(step: int, last: int, place: int) -> tuple[int, int]:
    """Return :func:`_largest_residue` for x <= last within a period, by Euclid's algorithm.

    ``rise`` is a change of the residue over a distance in x, and ``fall`` a downward one. The
    residue climbs by the rise while it stays below the place. Then each of the two shrinks by the
    other, with distances that add up, until the rise fits again.
    """
    rise, rise_at = step, 1
    fall, fall_at = place, 0
    residue = x = 0
    while True:
        climbs = min((place - 1 - residue) // rise, (last - x) // rise_at)
        residue, x = residue + climbs * rise, x + climbs * rise_at
        if fall > rise:
            times = (fall - 1) // rise
            fall, fall_at = fall - times * rise, fall_at + times * rise_at
        possible = (rise - 1) // fall
        if fall > rise or not possible:
            return residue, x
        wanted = max(1, -(-(rise - (place - 1 - residue)) // fall))
        times = min(possible, wanted)
        rise, rise_at = rise - times * fall, rise_at + times * fall_at
        if rise_at > last - x:
            return residue, x


def _weighted_carries(carries: list[Carry], modes: list[tuple[int, Step]], x: list[int]) -> int:
    total = 0
    for component, place, weight in carries:
        residues = sum([xi * s[component] % place for xi, (_, s) in zip(x, modes, strict=True)])
        total += weight * (residues // place)
    return total


def _search(
    carries: list[Carry], modes: list[tuple[int, Step]], budget: Budget
) -> list[int] | None:
    """Add mode after mode; sums that agree modulo all places carry alike, and are kept once."""
    modulus = [1] * (1 + max(c.component for c in carries))
    for component, place, _ in carries:
        modulus[component] = lcm(modulus[component], place)
    sums: dict[Step, list[int]] = {tuple([0] * len(modulus)): []}
    for extent, step in modes:
        longer: dict[Step, list[int]] = {}
        for x in range(extent):
            budget.spend(len(sums))
            addend = [x * s % m for s, m in zip(step, modulus)]  # noqa: B905
            for partial, crd in sums.items():
                total = 0
                for component, place, weight in carries:
                    if partial[component] % place + addend[component] % place >= place:
                        total += weight
                if total:
                    return [*crd, x, *[0] * (len(modes) - len(crd) - 1)]
                key = tuple([(p + a) % m for p, a, m in zip(partial, addend, modulus)])  # noqa: B905
                if key not in longer:
                    longer[key] = [*crd, x]
        sums = longer
    return None
