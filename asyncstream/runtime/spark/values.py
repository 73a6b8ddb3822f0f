"""
Elements and state as bytes: by pickle, with the classes of a script or notebook inside.

Pickle writes the name of a class, and a worker looks it up in its modules. Classes of `__main__`, or made
within a function, are in none. So where pickle gives up, such classes are written out, as PySpark does with
those that a function refers to; a process that knows one already goes on with that, for as long as the same
driver runs. Functions by themselves are still refused: an element is data.
"""

from __future__ import annotations

import io
import pickle
from types import FunctionType
from typing import Any

__all__ = ("dumps", "loads")

loads = pickle.loads


def dumps(value: Any) -> bytes:
    """
    The bytes of which `loads` makes an equal value, in any worker.

    Raises:
        Exception: whatever pickling raises.
    """
    try:
        return pickle.dumps(value, 5)
    except Exception:
        from pyspark.cloudpickle import Pickler

        class ByValue(Pickler):  # type: ignore[misc]
            has_class = False

            def reducer_override(self, part: Any) -> Any:
                if isinstance(part, type):
                    self.has_class = True
                elif isinstance(part, FunctionType) and not self.has_class:
                    return NotImplemented  # pickle's own way, which refuses it
                return super().reducer_override(part)

        file = io.BytesIO()
        ByValue(file, 5).dump(value)
        return file.getvalue()
