"""Vector primitives: accuracy of exp and log, rounding to bfloat16 and float16, the order in which lanes are folded.

Run: pytest tests/kernels/test_simd.py
"""

import numpy as np
import pytest
import torch

from tspec.kernels.cpu import simd
from tspec.kernels.cpu.kv_cache import store_number
from tspec.kernels.cpu.rows import load_number
from tspec.kernels.cpu.simd import BF16, F16, LANES, load, store, store_f32
from tspec.kernels.jit import native
from tspec.runtime.memory import address

MAX_EXP_ULP, MAX_LOG_ULP = 1, 2
"""Of float32, against float64."""


@native()
def apply_exp(out, x, count):
    for at in range(0, count * 4, LANES * 4):
        store(out + at, simd.exp(load(x + at)))


@native()
def apply_log(out, x, count):
    for at in range(0, count * 4, LANES * 4):
        store(out + at, simd.log(load(x + at)))


@native()
def fold(out, x):
    store_f32(out, simd.total(load(x)))
    store_f32(out + 4, simd.largest(load(x)))


@native()
def round_all(out, x, count, storage):
    for at in range(count):
        store_number(out + at * 2, storage, simd.load_f32(x + at * 4))


@native()
def widen_all(out, x, count, storage):
    for at in range(count):
        store_f32(out + at * 4, load_number(x + at * 2, storage))


def exp(values: np.ndarray) -> np.ndarray:
    return applied(apply_exp, values)


def log(values: np.ndarray) -> np.ndarray:
    return applied(apply_log, values)


def applied(function, values: np.ndarray) -> np.ndarray:
    padded = np.zeros(-(-len(values) // LANES) * LANES, np.float32)
    padded[: len(values)] = values
    out = np.empty_like(padded)
    function(address(out), address(padded), len(padded))
    return out[: len(values)]


def test_exp_is_within_one_ulp_of_float64():
    values = np.linspace(-87, 88, 400_001).astype(np.float32)
    values = np.concatenate([values, np.linspace(-1, 1, 100_001).astype(np.float32)])
    expected = np.exp(values.astype(np.float64))
    error = np.abs(exp(values) - expected) / np.spacing(expected.astype(np.float32))
    assert error.max() <= MAX_EXP_ULP


def test_log_is_within_two_ulp_of_float64():
    bits = np.random.default_rng(4).integers(0x00800000, 0x7F800000, 400_000).astype(np.uint32)
    near_one = 1 + np.arange(-100_000, 100_000) * np.float32(2.0**-23)
    values = np.concatenate([bits.view(np.float32), near_one.astype(np.float32)])
    expected = np.log(values.astype(np.float64))
    error = np.abs(log(values) - expected) / np.spacing(np.abs(expected).astype(np.float32))
    assert error.max() <= MAX_LOG_ULP


def test_log_has_no_number_below_the_smallest_normal_one():
    assert log(np.array([0.0, -0.0, 1e-39, -1.0, -np.inf, np.nan], np.float32)).tolist() == [-np.inf] * 6
    assert log(np.array([1.0], np.float32)).tolist() == [0.0]


def test_exp_of_zero_is_exactly_one():
    assert exp(np.array([0.0, -0.0], np.float32)).tolist() == [1.0, 1.0]


def test_exp_is_exactly_zero_below_its_range():
    below = np.nextafter(np.float32(-87), np.float32(-np.inf))
    assert exp(np.array([below, -88, -1e4, -3e38, -np.inf], np.float32)).tolist() == [0.0] * 5
    assert exp(np.array([-87], np.float32))[0] > 0


def test_exp_is_finite_above_its_range():
    values = exp(np.array([88, 89, 1e9, np.inf], np.float32))
    assert np.isfinite(values).all()
    assert (values == values[0]).all()


def test_exp_of_a_lane_does_not_depend_on_its_place():
    values = np.random.default_rng(0).uniform(-20, 20, LANES).astype(np.float32)
    expected = exp(values)
    for shift in range(LANES):
        assert np.array_equal(exp(np.roll(values, shift)), np.roll(expected, shift))


def special_numbers() -> np.ndarray:
    """Ties and their neighbours, subnormal numbers, the greatest, infinities, zeros, all of both signs."""
    generator = np.random.default_rng(1)
    bits = generator.integers(0, 1 << 32, 20_000, dtype=np.uint64).astype(np.uint32)
    ties = np.concatenate([bits & ~np.uint32(0xFFFF) | np.uint32(half) for half in (0x7FFF, 0x8000, 0x8001)])
    half_ties = bits & ~np.uint32(0x1FFF) | np.uint32(0x1000)  # between two float16
    small = np.array([1, 2, 0x8000, 0x18000, 0x7FFFFF, 0x33000000, 0x33000001, 0x387FF000], np.uint32)
    large = np.array([0x477FE000, 0x477FEFFF, 0x477FF000, 0x7F7F8000, 0x7F7FFFFF, 0x7F800000, 0], np.uint32)
    numbers = np.concatenate([bits, ties, half_ties, small, large]).view(np.float32)
    numbers = numbers[~np.isnan(numbers)]
    return np.concatenate([numbers, -numbers])


def rounded(values: np.ndarray, storage: int) -> np.ndarray:
    out = np.empty(len(values), np.uint16)
    round_all(address(out), address(values), len(values), storage)
    return out


@pytest.mark.parametrize(("storage", "dtype"), [(BF16, torch.bfloat16), (F16, torch.float16)])
def test_rounding_goes_to_the_nearest_and_ties_to_even(storage, dtype):
    values = special_numbers()
    expected = torch.from_numpy(values).to(dtype).view(torch.int16).numpy().view(np.uint16)
    assert np.array_equal(rounded(values, storage), expected)


@pytest.mark.parametrize(("storage", "dtype"), [(BF16, torch.bfloat16), (F16, torch.float16)])
def test_a_nan_stays_a_nan_whatever_its_payload(storage, dtype):
    bits = np.array([0x7F800001, 0x7FBFFFFF, 0x7FC00000, 0x7FFFFFFF, 0xFF800001, 0xFFFFFFFF], np.uint32)
    stored = torch.from_numpy(rounded(bits.view(np.float32), storage).view(np.int16)).view(dtype)
    assert stored.isnan().all()


@pytest.mark.parametrize(("storage", "dtype"), [(BF16, torch.bfloat16), (F16, torch.float16)])
def test_every_stored_number_widens_exactly_and_rounds_back_to_itself(storage, dtype):
    stored = torch.arange(1 << 16, dtype=torch.int32).to(torch.int16).view(dtype)
    stored = stored[~stored.isnan()]
    bits = stored.view(torch.int16).numpy().view(np.uint16).copy()
    wide = np.empty(len(bits), np.float32)
    widen_all(address(wide), address(bits), len(bits), storage)
    assert np.array_equal(wide, stored.float().numpy())
    assert np.array_equal(rounded(wide, storage), bits)


def test_lanes_are_folded_by_halves():
    """Rounding shows the order: 16 to 8 to 4 to 2 to 1."""
    generator = np.random.default_rng(2)
    out = np.empty(2, np.float32)
    for _ in range(50):
        values = (generator.normal(size=LANES) * 10.0 ** generator.integers(-4, 4, LANES)).astype(np.float32)
        fold(address(out), address(values))
        half = values
        while len(half) > 1:
            half = half[: len(half) // 2] + half[len(half) // 2 :]
        assert out[0] == half[0]
        assert out[1] == values.max()
