"""A synthetic street: one sweep of a spinning lidar at a crossroads."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

_SENSOR_HEIGHT = 2.85  # on the roof of a van, so that it sees over parked cars
_REACH = 48.0  # metres: echoes from farther away are too faint
_KERB = 0.12
_MAIN, _SIDE = 4.2, 3.4  # half-widths of the two carriageways
_CROSSING = 11.0  # x of the side street's middle
_PAVEMENT = 2.6


def street(seed: int = 0, beams: int = 80, azimuths: int = 720) -> NDArray[np.float32]:
    """Return points of a synthetic street as a lidar on a van would see them, float32 (points, 4).

    Args:
        seed: determines houses, cars, trees, people and noise; the same seed gives the same points.
        beams: rays above each other, from 9 degrees up to 40 degrees down.
        azimuths: directions per turn.

    Returns:
        Columns x (along the street), y, z (up) in metres from the lidar, 2.85 m above the road, and
        intensity in [0, 1]. Nine of ten rays return.

    >>> points = street(seed=3, beams=16, azimuths=256)
    >>> points.shape[1], bool((street(seed=3, beams=16, azimuths=256) == points).all())
    (4, True)
    """
    return street_and_cars(seed, beams, azimuths)[0]


def street_and_cars(
    seed: int = 0, beams: int = 80, azimuths: int = 720
) -> tuple[NDArray[np.float32], Floats]:
    """Return :func:`street`, and the boxes of its cars: (cars, 5), whether or not a ray hit them.

    The columns are x and y of the middle, length, width in metres, and yaw, the angle from x to the
    front in radians.

    >>> points, cars = street_and_cars(seed=3, beams=16, azimuths=256)
    >>> cars.shape[1], bool((cars[:, 2] > 2 * cars[:, 3]).all())
    (5, True)
    """
    rng = np.random.default_rng(seed)
    sweep = _Sweep(rng, beams, azimuths)
    sweep.ground()
    for sign in (-1.0, 1.0):
        _houses(sweep, rng, sign)
        _parked_cars(sweep, rng, sign)
        _lamps_and_trees(sweep, rng, sign)
    for x, y, yaw in ((-21.0, 2.0, np.pi), (9.0, -2.1, 0.0), (33.0, -2.0, 0.0), (16.0, 24.0, 1.6)):
        _car(sweep, rng, x + rng.uniform(-3, 3), y, yaw + rng.normal(0, 0.04))
    for _ in range(14):
        x, y = rng.uniform(-30, 40), rng.choice((-1, 1)) * rng.uniform(4.8, 6.4)
        sweep.cylinder(x, y, radius=0.24, low=_KERB, high=rng.uniform(1.5, 1.9), albedo=0.45)
    return sweep.points(), np.array(sweep.cars)


class _Sweep:
    """Rays from the lidar, and for each the nearest surface hit so far."""

    def __init__(self, rng: np.random.Generator, beams: int, azimuths: int) -> None:
        self.rng = rng
        # Four of five beams hit level ground, at radii that grow by a constant factor.
        rings = np.geomspace(3.4, 1.1 * _REACH, beams - beams // 5)
        up = np.radians(np.linspace(-1.5, 9.0, beams // 5))
        elevation = np.concatenate([-np.arctan(_SENSOR_HEIGHT / rings), up])
        azimuth = np.arange(azimuths) * (2 * np.pi / azimuths)
        elevation, azimuth = (a.ravel() for a in np.meshgrid(elevation, azimuth))
        level = np.cos(elevation)
        self.direction = np.stack(
            [level * np.cos(azimuth), level * np.sin(azimuth), np.sin(elevation)], axis=1
        )
        self.heading = self.direction[:, :2] / level[:, None]
        self.distance = np.full(len(level), np.inf)
        self.intensity = np.zeros(len(level))
        self.cars: list[tuple[float, float, float, float, float]] = []

    def meet(self, rays: NDArray[np.intp], distance: Floats, intensity: Floats) -> None:
        """Record surfaces at ``distance`` (inf: a miss) along some rays, where they are nearest."""
        nearer = distance < self.distance[rays]
        self.distance[rays[nearer]] = distance[nearer]
        self.intensity[rays[nearer]] = intensity[nearer]

    def towards(self, x: float, y: float, radius: float) -> NDArray[np.intp]:
        """Return the rays that pass over or through a circle on the ground."""
        ahead = self.heading @ (x, y)
        aside = np.abs(self.heading @ (-y, x))
        return np.flatnonzero((aside < radius) & (ahead > -radius))

    def ground(self) -> None:
        """Add the carriageways, and the pavements and gardens a kerb higher."""
        with np.errstate(divide="ignore"):
            down = 1 / np.maximum(-self.direction[:, 2], 1e-9)
        every = np.arange(len(down))
        for height, on_road in ((_KERB, False), (0.0, True)):
            distance = (_SENSOR_HEIGHT - height) * down
            x, y = (self.direction[:, :2] * distance[:, None]).T
            road = (np.abs(y) < _MAIN) | (np.abs(x - _CROSSING) < _SIDE)
            albedo = _road_albedo(x, y) if on_road else _verge_albedo(x, y)
            hit = (road == on_road) & (distance < _REACH)
            # A surface at a grazing angle reflects less.
            intensity = albedo * np.minimum(1, 0.35 - 2.2 * self.direction[:, 2])
            rough = np.where(albedo == _GRASS, 0.03, 0.008) * self.rng.standard_normal(len(x))
            self.meet(every, np.where(hit, distance + rough * down.clip(max=8), np.inf), intensity)

    def box(
        self,
        x: float,
        y: float,
        half: tuple[float, float],
        low: float,
        high: float,
        albedo: float,
        yaw: float = 0.0,
    ) -> None:
        """Add an upright box: the intersection of three slabs."""
        rays = self.towards(x, y, float(np.hypot(*half)))
        c, s = np.cos(yaw), np.sin(yaw)
        turn = np.array([[c, -s, 0.0], [s, c, 0.0], [0.0, 0.0, 1.0]])
        direction = self.direction[rays] @ turn
        direction = np.where(np.abs(direction) < 1e-9, 1e-9, direction)
        centre = np.array([x, y, (low + high) / 2 - _SENSOR_HEIGHT]) @ turn
        reach = np.array([*half, (high - low) / 2])
        near = (centre - np.sign(direction) * reach) / direction
        far = (centre + np.sign(direction) * reach) / direction
        entry, face = near.max(axis=1), near.argmax(axis=1)
        hit = (entry < far.min(axis=1)) & (entry > 0.8)
        facing = np.abs(np.take_along_axis(direction, face[:, None], axis=1)[:, 0])
        self.meet(rays, np.where(hit, entry, np.inf), albedo * (0.3 + 0.7 * facing))

    def cylinder(
        self, x: float, y: float, radius: float, low: float, high: float, albedo: float
    ) -> None:
        """Add an upright cylinder: a pole, a trunk, a person."""
        rays = self.towards(x, y, radius)
        level = np.hypot(*self.direction[rays, :2].T)
        ahead = self.heading[rays] @ (x, y)
        aside = self.heading[rays] @ (-y, x)
        depth = np.sqrt(np.maximum(radius**2 - aside**2, 0))
        distance = (ahead - depth) / level
        height = _SENSOR_HEIGHT + distance * self.direction[rays, 2]
        hit = (low < height) & (height < high) & (distance > 0.8)
        self.meet(rays, np.where(hit, distance, np.inf), albedo * (0.3 + 0.7 * depth / radius))

    def crown(self, x: float, y: float, z: float, radius: float) -> None:
        """Add foliage in a sphere: a ray flies a random distance in it, and may leave it again."""
        rays = self.towards(x, y, radius)
        centre = np.array([x, y, z - _SENSOR_HEIGHT])
        middle = self.direction[rays] @ centre
        depth = np.sqrt(np.maximum(radius**2 - (centre @ centre - middle**2), 0))
        free = self.rng.exponential(0.9, len(rays))
        hit = (free < 2 * depth) & (middle - depth > 0.8)
        distance = np.where(hit, middle - depth + free, np.inf)
        self.meet(rays, distance, self.rng.uniform(0.1, 0.4, len(rays)))

    def points(self) -> NDArray[np.float32]:
        """Return the echoes: fewer from far surfaces, with centimetres of noise."""
        lost = self.rng.random(len(self.distance)) > 0.985 - 0.25 * (self.distance / _REACH) ** 2
        kept = (self.distance < _REACH) & ~lost
        distance = self.distance[kept] + self.rng.normal(0, 0.012, np.count_nonzero(kept))
        xyz = self.direction[kept] * distance[:, None]
        intensity = self.intensity[kept] * self.rng.normal(1, 0.06, len(xyz))
        return np.column_stack([xyz, intensity.clip(0, 1)]).astype(np.float32)


_ASPHALT, _PAINT, _STONE, _GRASS = 0.16, 0.95, 0.42, 0.28


def _road_albedo(x: Floats, y: Floats) -> Floats:
    """Return asphalt and its paint: middle and edge lines, a zebra on each arm of the crossing."""
    offset = np.abs(x - _CROSSING)
    outside = offset > _SIDE + 4.5
    middle = (np.abs(y) < 0.12) & (x % 6.0 < 3.0) & outside
    edges = (np.abs(np.abs(y) - _MAIN + 0.35) < 0.1) & outside
    stripes = (np.abs(offset - _SIDE - 2.2) < 1.4) & (y % 1.1 < 0.55) & (np.abs(y) < _MAIN - 0.5)
    along = (np.abs(np.abs(y) - _MAIN - 2.2) < 1.4) & (x % 1.1 < 0.55) & (offset < _SIDE - 0.4)
    return np.where(middle | edges | stripes | along, _PAINT, _ASPHALT)


def _verge_albedo(x: Floats, y: Floats) -> Floats:
    """Return stone slabs beside the carriageways, and grass behind them."""
    paved = (np.abs(y) < _MAIN + _PAVEMENT) | (np.abs(x - _CROSSING) < _SIDE + _PAVEMENT)
    return np.where(paved, _STONE, _GRASS)


def _plots(rng: np.random.Generator, first: float, last: float) -> list[tuple[float, float]]:
    """Divide a row of houses into (middle, half-width), with gaps for side paths."""
    plots, start = [], first
    while start < last - 5:
        half = min(rng.uniform(3.5, 7.5), (last - start) / 2)
        plots.append((start + half, half))
        start += 2 * half + rng.uniform(1.2, 4.0)
    return plots


def _houses(sweep: _Sweep, rng: np.random.Generator, sign: float) -> None:
    """Add one side of the main street, and the two rows of the side street behind it."""
    clear = _SIDE + _PAVEMENT + 1.2
    for first, last in ((-70.0, _CROSSING - clear), (_CROSSING + clear, 70.0)):
        for x, half in _plots(rng, first, last):
            front, depth = rng.uniform(9.0, 12.0), rng.uniform(4.0, 5.5)
            wall = rng.uniform(0.35, 0.75)
            y = sign * (front + depth)
            sweep.box(x, y, (half, depth), 0, rng.uniform(5, 9), wall)
            bay = x + rng.uniform(-0.5, 0.5) * half  # a bay window, and a low garden wall in front
            sweep.box(bay, sign * (front - 0.5), (1.3, 0.6), 0, 3.2, wall)
            sweep.box(x, sign * (_MAIN + _PAVEMENT + 0.2), (half - 0.9, 0.12), 0, 0.9, 0.5)
    for side in (-1.0, 1.0):
        for y, half in _plots(rng, 24.0, 68.0):
            x = _CROSSING + side * (_SIDE + _PAVEMENT + rng.uniform(5.0, 6.5))
            sweep.box(x, sign * y, (4.0, half), 0, rng.uniform(5, 8), rng.uniform(0.35, 0.75))


def _car(sweep: _Sweep, rng: np.random.Generator, x: float, y: float, yaw: float) -> None:
    """Add a body, a cabin set back on it, and four wheels."""
    paint, long = rng.uniform(0.2, 0.8), rng.uniform(1.95, 2.35)
    c, s = np.cos(yaw), np.sin(yaw)
    sweep.cars.append((x, y, 2 * long, 2 * 0.88, yaw))
    sweep.box(x, y, (long, 0.88), 0.28, 0.88, paint, yaw)
    sweep.box(x - 0.25 * c, y - 0.25 * s, (0.58 * long, 0.76), 0.88, 1.48, 0.7 * paint, yaw)
    for u, v in ((-0.62, -0.8), (-0.62, 0.8), (0.62, -0.8), (0.62, 0.8)):
        at = (x + c * u * long - s * v, y + s * u * long + c * v)
        sweep.cylinder(*at, radius=0.32, low=0, high=0.3, albedo=0.1)


def _parked_cars(sweep: _Sweep, rng: np.random.Generator, sign: float) -> None:
    x = -62.0
    while x < 62:
        at_crossing = abs(x - _CROSSING) < _SIDE + 7
        if not at_crossing and abs(x) > 5 and rng.random() < 0.8:
            _car(sweep, rng, x, sign * (_MAIN - 1.05 + rng.normal(0, 0.08)), rng.normal(0, 0.025))
        x += rng.uniform(5.4, 7.2)


def _lamps_and_trees(sweep: _Sweep, rng: np.random.Generator, sign: float) -> None:
    kerbside = sign * (_MAIN + 0.5)
    plant: Callable[[float], None]

    def tree(x: float) -> None:
        y, trunk = sign * (_MAIN + _PAVEMENT - 0.7), rng.uniform(0.12, 0.22)
        sweep.cylinder(x, y, trunk, 0, 4.0, albedo=0.3)
        for _ in range(4):
            dx, dy, dz = rng.normal(0, (0.8, 0.8, 0.5))
            sweep.crown(x + dx, y + dy, 4.2 + dz, rng.uniform(0.9, 1.5))

    def lamp(x: float) -> None:
        sweep.cylinder(x, kerbside, 0.09, 0, 6.5, albedo=0.6)
        sweep.box(x, kerbside - sign * 0.8, (0.12, 0.8), 6.3, 6.5, albedo=0.6)

    for number, x in enumerate(np.arange(-60.0, 61.0, 8.0)):
        plant = lamp if number % 3 == 0 else tree
        if abs(x - _CROSSING) > _SIDE + _PAVEMENT and (plant is lamp or rng.random() < 0.75):
            plant(x + rng.uniform(-1, 1))
