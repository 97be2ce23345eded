"""Successive halving on a machine made of numbers: it finds the best, keeps to its time, and trusts no luck.

Run: pytest tests/autotune/test_search.py
"""

import math
from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from autotune.search import FIRST_TURNS, LAST_TURNS, LEAST_GAIN, Search, nearest_first
from tspec.kernels.cpu.tuned import DEFAULT_PRODUCT, product_space


class Machine:
    """Configurations are whole numbers; each takes `seconds` of it, times what the clock is slow by."""

    def __init__(self, seconds, slowness=lambda now: 1.0):
        self.now = 0.0
        self.seconds = seconds
        self.slowness = slowness
        self.runs = Counter()

    def measure(self, config):
        self.runs[config] += 1
        times = [each * self.slowness(self.now) for each in self.seconds(config)]
        self.now += sum(times)
        return times

    def search(self, space, default, budget_s):
        return Search(self.measure, lambda: self.now, budget_s).run(space, default)


@given(st.lists(st.floats(0.1, 10), min_size=2, max_size=40, unique=True))
def test_with_time_enough_the_best_is_found(times):
    machine = Machine(lambda config: (times[config],))
    found = machine.search(range(len(times)), 0, 1e9)
    best = min(range(len(times)), key=times.__getitem__)
    expected = best if times[best] <= (1 - LEAST_GAIN) * times[0] else 0
    assert found.config == expected
    assert found.num_measured == found.num_in_space == len(times)
    if expected:
        assert math.isclose(found.time_ratio, times[best] / times[0])


def test_the_better_a_configuration_the_more_often_it_is_measured():
    machine = Machine(lambda config: (1.0 + config,))
    found = machine.search(range(27), 26, 1e9)
    assert found.config == 0
    runs = [machine.runs[config] for config in range(26)]
    assert runs == sorted(runs, reverse=True)
    assert runs[0] == FIRST_TURNS + 3 * FIRST_TURNS + 9 * FIRST_TURNS + LAST_TURNS
    assert runs[25] == FIRST_TURNS


def test_a_case_that_gains_does_not_pay_for_one_that_loses():
    """The mean of the second is the better; alone it is not taken either, since plain decoding would be slower."""
    seconds = {0: (1.0, 1.0), 1: (0.88, 1.05), 2: (0.97, 0.97)}.__getitem__
    assert Machine(seconds).search(range(3), 0, 1e9).config == 2
    assert Machine(seconds).search(range(2), 0, 1e9).config == 0


def test_a_gain_below_the_least_one_is_none():
    machine = Machine({0: (1.0,), 1: (1 - LEAST_GAIN / 2,)}.__getitem__)
    found = machine.search(range(2), 0, 1e9)
    assert (found.config, found.time_ratio) == (0, 1.0)


def test_a_machine_that_slows_down_does_so_for_all():
    """Each configuration in a row of its own would look twice as slow as the one before."""
    machine = Machine(lambda config: (1.0 - 0.02 * config,), slowness=lambda now: 1 + now / 100)
    assert machine.search(range(9), 0, 1e9).config == 8


def test_who_wins_by_luck_is_not_taken():
    """Faster by a fifth in two thirds of the turns, slower in the others: the medians alone would take it."""
    turn = Counter()

    def seconds(config):
        turn[config] += 1
        return (1.0,) if config == 0 else (1.3,) if turn[config] % 3 == 0 else (0.8,)

    assert Machine(seconds).search(range(2), 0, 1e9).config == 0


def test_what_there_was_no_time_to_be_sure_of_is_not_taken():
    seconds = {0: (1.0,), 1: (0.5,)}.__getitem__
    late, early = (Machine(seconds).search(range(2), 0, budget_s) for budget_s in (6.0, 100.0))
    assert (late.config, late.is_sure) == (0, False)
    assert (early.config, early.is_sure) == (1, True)


def test_one_slow_moment_changes_no_median():
    moments = iter([1.0] * 4 + [50.0] + [1.0] * 10_000)
    machine = Machine(lambda config: (0.8 if config == 1 else 1.0,), slowness=lambda now: next(moments))
    assert machine.search(range(3), 0, 1e9).config == 1


@given(st.integers(1, 500), st.floats(1, 1000))
def test_the_budget_is_kept_but_for_a_turn_and_the_last_word_of_two(num_configs, budget_s):
    machine = Machine(lambda config: (1.0,))
    found = machine.search(range(num_configs), 0, budget_s)
    assert machine.now <= budget_s + num_configs + 5
    assert machine.now <= max(1.5 * budget_s, budget_s + 7)
    assert found.num_measured <= max(2, 1 + 0.4 * budget_s / FIRST_TURNS)


def test_of_a_space_too_large_the_first_ones_are_measured():
    machine = Machine(lambda config: (1.0,))
    found = machine.search(range(1000), 500, 30.0)
    assert machine.runs.keys() == {500, 0, 1, 2, 3}
    assert (found.num_measured, found.num_in_space) == (5, 1000)


def test_near_the_default_are_those_that_differ_in_few_numbers():
    order = nearest_first(product_space(2), DEFAULT_PRODUCT)
    changes = [
        sum(getattr(each, name) != getattr(DEFAULT_PRODUCT, name) for name in each.__slots__)
        for each in order
    ]
    assert changes == sorted(changes)
    assert changes[0] == 0 and changes[1] == 1
    assert order == nearest_first(product_space(2), DEFAULT_PRODUCT)
    assert set(order) == set(product_space(2))


def test_a_space_of_the_default_alone_is_the_default():
    found = Machine(lambda config: (1.0,)).search([7], 7, 10.0)
    assert (found.config, found.num_measured, found.num_in_space) == (7, 1, 1)
