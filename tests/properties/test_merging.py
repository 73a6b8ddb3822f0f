"""The merging window set against brute force: merge all that touch, until nothing does."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from asyncstream.windowing import MergingWindowSet, TimeWindow

WINDOWS = st.builds(
    lambda start, size: TimeWindow(start, start + size), st.integers(-40, 40), st.integers(1, 12)
)


def merged(windows: list[TimeWindow]) -> list[TimeWindow]:
    found: list[TimeWindow] = []
    for window in sorted(windows):
        if found and found[-1].touches(window):
            found[-1] = found[-1].cover(window)
        else:
            found.append(window)
    return found


@settings(max_examples=300, deadline=None)
@given(st.lists(WINDOWS, max_size=40))
def test_open_windows_are_what_brute_force_gives(windows: list[TimeWindow]) -> None:
    opened = MergingWindowSet()
    contents: dict[TimeWindow, list[TimeWindow]] = {}  # by state window: what was added
    model: list[TimeWindow] = []
    for window in windows:
        before = {one for one, _ in opened}
        result = opened.add(window)
        model = merged([*model, window])
        assert [one for one, _ in opened] == model
        assert result.window in model
        assert set(result.merged) == before - {one for one, _ in opened}
        assert result.merged == sorted(result.merged)
        place = opened.state_window(result.window)
        assert place is not None
        if result.merged:
            assert place == result.state_windows[0]
            for other in result.state_windows[1:]:
                contents[place] += contents.pop(other)
        contents.setdefault(place, []).append(window)
    for window, place in opened:
        assert sorted(contents.pop(place)) == sorted(one for one in windows if window.touches(one))
    assert not contents


@settings(max_examples=100, deadline=None)
@given(st.lists(WINDOWS, max_size=20))
def test_a_copy_of_its_pairs_goes_on_the_same(windows: list[TimeWindow]) -> None:
    opened = MergingWindowSet()
    for window in windows:
        copy = MergingWindowSet(reversed(list(opened)))
        assert copy.add(window) == opened.add(window)
        assert list(copy) == list(opened)
    for window, _ in list(opened):
        opened.retire(window)
        assert opened.state_window(window) is None
    assert len(opened) == 0
