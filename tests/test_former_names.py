"""Programs that use names of the version before go on for a while, and are told of the new ones."""

from __future__ import annotations

import importlib
from types import ModuleType

import pytest

from asyncstream import arguments, calls, guards, validation
from asyncstream.windowing import policies

MOVED = [(calls, name, guards) for name in guards.__all__]
MOVED += [(arguments, name, validation) for name in validation.__all__]


@pytest.mark.parametrize(
    ("former", "name", "now"), MOVED, ids=[f"{former.__name__}.{name}" for former, name, _ in MOVED]
)
def test_a_module_by_its_former_name(former: ModuleType, name: str, now: ModuleType) -> None:
    with pytest.warns(DeprecationWarning, match=rf"is now {now.__name__}; the old name goes with"):
        assert getattr(former, name) is getattr(now, name)


@pytest.mark.parametrize("name", sorted(policies.FORMER))
def test_policy_by_its_former_name(name: str) -> None:
    with pytest.warns(DeprecationWarning, match=rf"{name} is now {policies.FORMER[name].__name__};"):
        assert getattr(policies, name) is policies.FORMER[name]


def test_the_warning_is_of_the_line_that_asks() -> None:
    with pytest.warns(DeprecationWarning, match="guards") as told:
        importlib.import_module("asyncstream.calls").retry  # noqa: B018
    assert told[0].filename == __file__


def test_former_names_give_nothing_else() -> None:
    for module in (arguments, calls, policies):
        with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
            module.nothing  # noqa: B018
