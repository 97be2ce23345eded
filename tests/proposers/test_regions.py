"""Regions never overlap, and are used again.

Run: python -m pytest tests/proposers/test_regions.py
"""

from hypothesis import given
from hypothesis import strategies as st

from tspec.proposers.regions import Regions


@given(st.lists(st.one_of(st.sampled_from([4, 8, 16]), st.none())))
def test_held_regions_never_overlap_and_end_covers_them(requests):
    """A size takes a region of it, None gives the oldest back."""
    regions, held = Regions(), []
    for capacity in requests:
        if capacity is not None:
            held.append((regions.take(capacity), capacity))
        elif held:
            regions.give_back(*held.pop(0))
        places = [place for start, size in held for place in range(start, start + size)]
        assert len(places) == len(set(places))
        assert regions.end > max(places, default=-1)


def test_freed_region_is_used_again_at_its_size():
    regions = Regions()
    small, large = regions.take(4), regions.take(8)
    regions.give_back(small, 4)
    assert regions.take(8) not in (small, large)
    assert regions.take(4) == small


def test_range_starts_over_when_nothing_is_held():
    regions = Regions()
    for capacity in (4, 8, 16):
        regions.give_back(regions.take(capacity), capacity)
    assert regions.end == 0
    assert regions.take(16) == 0
