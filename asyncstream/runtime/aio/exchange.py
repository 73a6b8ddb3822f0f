"""
What goes in and out of a running job: elements that are submitted, results, answers, and what is published.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable
from typing import Any, TypeVar, overload

from asyncstream.aside import running_loop
from asyncstream.connectors.outlets import (
    Answers,
    Publication,
    Published,
    Results,
    ResultsHandle,
    Slow,
    Subscription,
)
from asyncstream.connectors.submissions import Submissions
from asyncstream.errors import JobStopped, PipelineError, describe_error
from asyncstream.operators.functions import FailedCall
from asyncstream.plan import SinkStep, SourceStep
from asyncstream.runtime.aio.run import Run
from asyncstream.runtime.aio.tickets import Tickets, no_room
from asyncstream.validation import Duration, duration_seconds, refuse

__all__ = ("Exchange",)

E = TypeVar("E")
T = TypeVar("T")


class Exchange:
    """The part of a `Job` that the program around it hands elements to and takes them from."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._process = 0  # in which it was entered
        self._tickets = Tickets()
        self._submissions: dict[str, Submissions[Any]] = {}
        self._results: dict[str, Results[Any]] = {}
        self._publications: dict[str, Publication[Any]] = {}
        self._answers: list[Answers] = []
        for step in run.graph:
            if isinstance(step, SourceStep) and isinstance(step.source, Submissions):
                self._submissions[step.name] = step.source
            elif isinstance(step, SinkStep) and isinstance(step.sink, Results):
                self._results[step.name] = step.sink
            elif isinstance(step, SinkStep) and isinstance(step.sink, Publication):
                self._publications[step.name] = step.sink
            elif isinstance(step, SinkStep) and isinstance(step.sink, Answers):
                self._answers.append(step.sink)

    # ------------------------------------------------------------------ in

    async def submit(
        self,
        value: Any,
        *,
        to: str | None = None,
        durable: bool | None = None,
        id: str | None = None,
        timeout: Duration | None = None,
    ) -> bool:
        """
        Hand an element to the pipeline; waits while it has no room.

        Once this returns, the element is accepted: it is finished, or in the snapshot, unless the job
        fails. From a source with an inbox it is not lost even then: it is on the disk, and the job that goes
        on from the last checkpoint finishes it, also after a `kill -9`.

        If the caller is cancelled while it waits for the disk, the element may be accepted; with the same
        `id` it can be submitted again, and is accepted once.

        Args:
            value: the element.
            to: name of the `pipeline.submissions()` source; not needed if there is one only.
            durable: True asks for a source with an inbox, and False for one without; None takes either.
            id: what tells the element from others, of at most 200 characters. It is accepted once, also if it
                is submitted again after a restart, for as long as the inbox remembers ids.
            timeout: how long to wait for room: a `timedelta` or seconds, 0 not to wait at all.

        Returns:
            Whether it is new; False: an element of the same `id` was accepted before, and this one is not.

        Raises:
            TimeoutError: if there was no room in time; then it was not accepted.
            JobStopped: if the job takes no more; from its error, if it has failed.
            CodecError: if it cannot be kept in the inbox; or is nested more than 100 levels deep, where there
                are checkpoints.
            SourceError: if the inbox fails.
        """
        submissions = self._open_submissions(value, to, durable, id)
        self._check_loop("submit", "use job.submit_threadsafe(...)")
        seconds = _seconds(timeout)
        try:
            return await self._submitted(submissions, value, id, seconds)
        except TimeoutError:
            raise no_room(seconds) from None

    def submit_threadsafe(
        self,
        value: Any,
        *,
        to: str | None = None,
        durable: bool | None = None,
        id: str | None = None,
        timeout: Duration | None = None,
    ) -> bool:
        """
        As `submit`, from any thread but the job's own: returns when the element is accepted.

        Args:
            value, to, durable, id: as for `submit`.
            timeout: how long to wait for room: a `timedelta` or seconds.

        Returns:
            As `submit`.

        Raises:
            TimeoutError: if it was not accepted in time; then it never is.
            JobStopped, CodecError, SourceError: as for `submit`.
        """
        seconds = _seconds(timeout)
        submissions = self._open_submissions(value, to, durable, id)
        self._check_process()
        if running_loop() is self._run.loop:
            raise PipelineError(
                "job.submit_threadsafe() would hold the event loop of the job; use `await job.submit(...)`"
            )
        try:
            return self._tickets.submit(submissions, value, id, self._run.loop, seconds)
        except JobStopped:
            raise self._takes_no_more() from self._run.error

    async def ask(
        self,
        value: Any,
        *,
        to: str | None = None,
        durable: bool | None = None,
        id: str | None = None,
        timeout: Duration | None = None,
    ) -> Any:
        """
        Submit an element and wait for its answer: the first one with its key to reach a `stream.answers()`.

        Args:
            value, to, durable: as for `submit`.
            id: as for `submit`. Of an element that was accepted before, by its `id`, only an answer is heard
                that is still to come.
            timeout: how long to wait, all in all: a `timedelta` or seconds; None: as long as the job runs.

        Raises:
            TimeoutError: if there was no answer in time. The element may have been accepted, and goes on.
            JobStopped, CodecError, SourceError: as for `submit`; `JobStopped` also if the job ends before it
                has answered.
            PipelineError: if no stream ends in `answers()`, or it finds no key in the element.
            Exception: what a function raised, if a stream of `.failed` ends in `answers()`, too; of what is
                no `Exception`, such as a `CancelledError`, a `RuntimeError` from it.
        """
        submissions = self._open_submissions(value, to, durable, id)
        self._check_loop("ask", "use job.from_thread.ask(...)")
        seconds = _seconds(timeout)
        if not self._answers:
            raise PipelineError("job.ask: no stream ends in answers; say where, e.g. stream.answers(by='id')")
        try:
            keys = [sink.key_of(value) for sink in self._answers]
        except Exception as error:
            raise PipelineError(
                f"job.ask: the element has no key to answer it by: {describe_error(error)}"
            ) from error
        answer: asyncio.Future[Any] = self._run.loop.create_future()
        for sink, key in zip(self._answers, keys, strict=True):
            sink.expect(key, answer)
        try:
            async with asyncio.timeout(seconds):
                await self._submitted(submissions, value, id)
                found = await answer
        except TimeoutError:
            raise TimeoutError(
                f"there was no answer within {seconds or 0:g} s; the element may have been accepted"
            ) from None
        finally:
            for sink, key in zip(self._answers, keys, strict=True):
                sink.give_up(key, answer)
            if not answer.cancel() and not answer.cancelled():
                answer.exception()  # told to the caller, not to the loop's exception handler
        if not isinstance(found, FailedCall):
            return found
        if isinstance(found.error, Exception):
            raise found.error
        # the cancellation of something that was awaited there would here be taken for one of who asks
        raise RuntimeError(describe_error(found.error)) from found.error

    async def _submitted(
        self, submissions: Submissions[Any], value: Any, id: str | None, seconds: float | None = None
    ) -> bool:
        try:
            return await submissions.submit(value, id=id, seconds=seconds)
        except JobStopped:
            raise self._takes_no_more() from self._run.error

    def _open_submissions(
        self, value: Any, to: str | None, durable: bool | None, id: str | None
    ) -> Submissions[Any]:
        self._check_started()
        submissions = _the_one(self._submissions, to, "pipeline.submissions()", "to")
        submissions.check(value, durable, id)
        if self._run.error is not None or self._run.phase == "closed":
            raise self._takes_no_more() from self._run.error
        return submissions

    def _takes_no_more(self) -> JobStopped:
        error = self._run.error
        ending = "" if error is None else f", for it has failed: {describe_error(error)}"
        return JobStopped(f"the job takes no more elements{ending}")

    # ------------------------------------------------------------------ out

    @overload
    def results(self, of: ResultsHandle[T]) -> AsyncIterator[T]: ...
    @overload
    def results(self, of: str | None = None) -> AsyncIterator[Any]: ...
    def results(self, of: ResultsHandle[Any] | str | None = None) -> AsyncIterator[Any]:
        """
        Iterate over the elements that reach a `stream.results()`, as they come.

        Ends when the job does, with its error if it has failed. Several iterators share the elements between
        them.

        Args:
            of: what `stream.results()` gave, or the name of that step; not needed if there is one only.
        """
        self._check_started()
        return _the_one(self._results, of, "stream.results()", "of").stream()

    @overload
    def subscribe(
        self,
        of: Published[T],
        *,
        filter: Callable[[T], object] | None = None,
        buffer: int = 100,
        slow: Slow = "drop",
    ) -> Subscription[T]: ...
    @overload
    def subscribe(
        self,
        of: str | None = None,
        *,
        filter: Callable[[Any], object] | None = None,
        buffer: int = 100,
        slow: Slow = "drop",
    ) -> Subscription[Any]: ...
    def subscribe(
        self,
        of: Published[Any] | str | None = None,
        *,
        filter: Callable[[Any], object] | None = None,
        buffer: int = 100,
        slow: Slow = "drop",
    ) -> Subscription[Any]:
        """
        Hear of the elements that reach a `stream.publish()` from now on, as every other subscriber does.

        `async for element in job.subscribe(...)`. Ends when the job does, with its error if it has failed.
        A subscriber who has left the loop is none any more; `async with job.subscribe() as elements:` is for
        where something else may still hold it.

        Args:
            of: what `stream.publish()` gave, or the name of that step; not needed if there is one only.
            filter: says of an element whether this subscriber wants it. What it raises, the subscriber gets.
            buffer: how many elements may wait for this subscriber.
            slow: what happens when one more comes: "drop": the oldest is dropped, and counted in `missed` of
                what this returns. "hold": the pipeline waits for this subscriber.
        """
        publication = self._publication(of)
        self._check_loop("subscribe", "use job.from_thread.subscribe(...)")
        return publication.subscribe(filter, buffer, slow)

    # ------------------------------------------------------------------ inside

    def _publication(self, of: Published[Any] | str | None) -> Publication[Any]:
        """The one that `subscribe` is asked for."""
        self._check_started()
        return _the_one(self._publications, of, "stream.publish()", "of")

    def _check_started(self, *, is_open: bool = True) -> None:
        """See that it was entered, and `is_open`: a call that a restore begins runs before it is."""
        if self._run.phase == "new" or (is_open and self._run.phase == "opening"):
            raise PipelineError("the job is not running yet; enter it: `async with pipeline.start() as job:`")

    def _check_process(self) -> None:
        """
        See that this is the process of the job: in one that was forked from it, its loop does not run.

        Raises:
            PipelineError: if it is another one.
        """
        if self._process not in (0, os.getpid()):
            raise PipelineError(
                f"the job runs in process {self._process}, from which this one was forked; start a job in "
                "each process, after the fork"
            )

    def _check_loop(self, method: str, advice: str) -> None:
        if running_loop() is not self._run.loop:
            raise PipelineError(f"job.{method}() was called outside the event loop of the job; {advice}")


def _seconds(timeout: Duration | None) -> float | None:
    return None if timeout is None else duration_seconds("timeout", timeout, zero=True)


def _the_one(
    endpoints: dict[str, E], name: ResultsHandle[Any] | Published[Any] | str | None, what: str, argument: str
) -> E:
    """The endpoint that is meant by a handle or a name, or the only one."""
    if isinstance(name, ResultsHandle | Published):
        found = endpoints.get(name.name)
        if found is None or found is not name.sink:
            raise refuse(argument, f"what {what} gave in the pipeline of this job", name.name)
        return found
    if name is None and len(endpoints) == 1:
        return next(iter(endpoints.values()))
    if isinstance(name, str) and name in endpoints:
        return endpoints[name]
    if not endpoints:
        raise PipelineError(f"there is no {what} in the pipeline")
    raise refuse(argument, f"the name of a {what}: " + ", ".join(map(repr, endpoints)), name)
