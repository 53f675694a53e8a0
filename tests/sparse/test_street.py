"""The synthetic street: seeded, and every ray stops at the first thing on its way."""

from __future__ import annotations

import numpy as np
import pytest

from layoutconv.sparse.coords.street import _SENSOR_HEIGHT, _Sweep, street, street_and_cars
from layoutconv.sparse.coords.voxels import voxelize

STEP = 0.004
BOX = (6.0, -2.0, (2.0, 0.8), 0.4, 3.4, 0.6)


def in_box(p):
    x, y, half, low, high, yaw = BOX
    u = np.cos(yaw) * (p[..., 0] - x) + np.sin(yaw) * (p[..., 1] - y)
    v = -np.sin(yaw) * (p[..., 0] - x) + np.cos(yaw) * (p[..., 1] - y)
    z = p[..., 2] + _SENSOR_HEIGHT
    return (np.abs(u) < half[0]) & (np.abs(v) < half[1]) & (low < z) & (z < high)


def in_cylinder(p):
    z = p[..., 2] + _SENSOR_HEIGHT
    return (np.hypot(p[..., 0] + 4, p[..., 1] - 3) < 0.7) & (z > 0.2) & (z < 4)


def add_box(sweep):
    x, y, half, low, high, yaw = BOX
    sweep.box(x, y, half, low, high, albedo=0.5, yaw=yaw)


def add_cylinder(sweep):
    sweep.cylinder(-4, 3, radius=0.7, low=0.2, high=4, albedo=0.5)


@pytest.mark.parametrize(("add", "within"), [(add_box, in_box), (add_cylinder, in_cylinder)])
def test_a_ray_stops_where_small_steps_along_it_first_go_inside(add, within):
    sweep = _Sweep(np.random.default_rng(0), beams=40, azimuths=90)
    add(sweep)
    along = np.arange(0.8, 12, STEP)
    first = np.full(len(sweep.distance), np.inf)
    for ray, direction in enumerate(sweep.direction):
        inside = within(along[:, None] * direction)
        if inside.any():
            first[ray] = along[inside.argmax()]
    hit = np.isfinite(sweep.distance)
    assert 20 < hit.sum() < len(hit) / 4
    # Where a ray only grazes the thing, the steps may miss it, and a cap of the cylinder is open.
    both = hit & np.isfinite(first)
    assert both.sum() > 0.97 * hit.sum()
    assert (np.abs(sweep.distance[both] - first[both]) < 2 * STEP).mean() > 0.97
    assert (sweep.distance[both] < first[both] + STEP).all()


def test_the_same_seed_gives_the_same_street_and_another_one_another():
    np.testing.assert_array_equal(street(5), street(5))
    assert len(street(5)) != len(street(6)) or (street(5) != street(6)).any()


@pytest.mark.parametrize("seed", range(3))
def test_a_street_looks_like_one(seed):
    points = street(seed)
    x, y, z, intensity = points.astype(np.float64).T
    height = z + _SENSOR_HEIGHT
    assert points.dtype == np.float32
    assert np.isfinite(points).all()
    assert 20_000 < len(points) < 60_000
    assert intensity.min() >= 0
    assert intensity.max() <= 1
    assert np.hypot(x, y).max() < 49
    assert height.min() > -0.15
    # Most rays meet the ground, the road is free between the parked cars, and houses are tall.
    assert 0.4 < (np.abs(height) < 0.3).mean() < 0.95
    assert height.max() > 4
    road = (np.abs(y) < 3) & (np.abs(height) < 0.1)
    assert intensity[road].max() > 3 * np.median(intensity[road])  # paint on asphalt
    assert len(voxelize(points, 0.2)) > 15_000


def test_cars_stand_where_the_street_says():
    points, cars = street_and_cars(2)
    np.testing.assert_array_equal(points, street(2))
    assert len(cars) > 10
    near = cars[np.hypot(*cars[:, :2].T) < 15]
    assert len(near) > 2
    for x, y, length, width, yaw in near:
        along, aside = points[:, 0] - x, points[:, 1] - y
        u = np.cos(yaw) * along + np.sin(yaw) * aside
        v = np.cos(yaw) * aside - np.sin(yaw) * along
        there = (np.abs(u) < length / 2 - 0.1) & (np.abs(v) < width / 2 - 0.1)
        height = points[there, 2] + _SENSOR_HEIGHT
        # The roof is the highest thing there, below the arms of lamps.
        assert height[height < 3].max() == pytest.approx(1.48, abs=0.1)
