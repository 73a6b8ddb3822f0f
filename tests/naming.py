"""Names of parametrized cases."""

from __future__ import annotations

import re

__all__ = ("shown",)


def shown(value: object) -> str:
    """As `repr`, without addresses: a case has the same name in every process that collects it."""
    return re.sub(r" at 0x[0-9a-f]+", "", repr(value))
