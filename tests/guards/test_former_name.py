"""The package was called `calls` once, and programs that say so go on for a while, told of it."""

from __future__ import annotations

import pytest

from asyncstream import calls, guards
from asyncstream.windowing import policies


@pytest.mark.parametrize("name", guards.__all__)
def test_guard_by_the_former_name_of_its_package(name: str) -> None:
    with pytest.warns(DeprecationWarning, match=r"asyncstream\.guards"):
        assert getattr(calls, name) is getattr(guards, name)


def test_former_names_give_nothing_else() -> None:
    for module in (calls, policies):
        with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
            module.nothing  # noqa: B018


@pytest.mark.parametrize("name", sorted(policies.FORMER))
def test_policy_by_its_former_name(name: str) -> None:
    with pytest.warns(DeprecationWarning, match=policies.FORMER[name].__name__):
        assert getattr(policies, name) is policies.FORMER[name]
