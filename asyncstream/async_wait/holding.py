"""
What async waits and batch jobs have in common: they hold elements until what has come of them may leave.
"""

from __future__ import annotations

from asyncstream.async_wait.tasks import within
from asyncstream.async_wait.way_out import WayOut
from asyncstream.errors import UserFunctionError
from asyncstream.operators.flow import Intake
from asyncstream.operators.whereabouts import TimeReached
from asyncstream.sharing import Shared, release

__all__ = ("Holding",)


class Holding(Intake):
    """
    An intake in which control elements have places among the elements, and go on behind those before them.
    """

    _way_out: WayOut
    _is_restored = False

    async def _let_go(self, function: Shared) -> None:
        """Close what calls were made of, unless others hold it; not for ever."""
        try:
            await within(self.context.patience, release(function))
        except TimeoutError as error:
            raise UserFunctionError(self.context.name, None, error, when="when it was closed") from error

    def time_reached(self) -> TimeReached:
        return TimeReached(self._way_out.watermark, None)

    def _restore_reached(self, watermark: int) -> None:
        """How far event time had come behind it; called by `restore`."""
        self._way_out.watermark = max(self._way_out.watermark, watermark)
        self._is_restored = True

    def restore_watermark(self, timestamp: int) -> None:
        if not self._is_restored:  # else upstream is ahead of what has been emitted here
            self._way_out.watermark = timestamp
            super().restore_watermark(timestamp)
