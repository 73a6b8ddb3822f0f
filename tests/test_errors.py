from __future__ import annotations

import os
import pickle
import re
from asyncio import Lock, gather, new_event_loop, run, wait_for
from pathlib import Path
from typing import Any

import pytest

from asyncstream import errors
from asyncstream.errors import (
    AsyncStreamError,
    CallTimeout,
    CircuitOpen,
    HttpError,
    MissingExtra,
    PipelineError,
    RetriesExhausted,
    SinkBroken,
    SinkError,
    UserFunctionError,
    describe_error,
    module_of,
    safe_repr,
    told_as,
)


class Awkward(Exception):
    def __str__(self) -> str:
        raise ValueError("no")

    __repr__ = __str__


def test_every_error_has_one_root() -> None:
    kinds = [getattr(errors, name) for name in errors.__all__]
    classes = [kind for kind in kinds if isinstance(kind, type)]
    assert len(classes) > 10
    assert all(issubclass(kind, AsyncStreamError) for kind in classes)


def test_every_error_says_when_it_is_raised() -> None:
    for name in errors.__all__:
        kind = getattr(errors, name)
        if isinstance(kind, type) and kind is not AsyncStreamError:
            assert (kind.__doc__ or "").strip().startswith("Raised when"), name


def test_errors_are_what_people_catch() -> None:
    assert issubclass(PipelineError, ValueError)
    assert issubclass(CallTimeout, TimeoutError)
    assert issubclass(MissingExtra, ImportError)


def test_user_function_error_names_step_and_element() -> None:
    error = UserFunctionError("enrich", {"id": 7}, ValueError("no plane"))
    assert str(error) == "step 'enrich': ValueError: no plane, on element {'id': 7}"
    assert (error.step, error.element) == ("enrich", {"id": 7})


def test_user_function_error_without_an_element_says_when() -> None:
    error = UserFunctionError("enrich", None, OSError("refused"), when="when it was opened")
    assert str(error) == "step 'enrich': OSError: refused, when it was opened"


def test_what_asyncio_says_of_another_event_loop_is_told_with_what_to_do() -> None:
    lock = Lock()

    async def held() -> None:
        await gather(*(wait_for(lock.acquire(), 0.01) for _ in range(2)))

    for _ in range(2):
        with pytest.raises((TimeoutError, RuntimeError)) as caught:
            run(held())
    closed = new_event_loop()
    closed.close()
    with pytest.raises(RuntimeError) as late:
        closed.call_soon(print)
    for error in (caught.value, late.value):
        assert "make it in the job's, as in open() of an AsyncFunction, on" in str(
            UserFunctionError("ask", 1, error)
        )


async def test_what_cannot_be_awaited_is_told_with_what_can() -> None:
    not_awaitable: Any = 1
    with pytest.raises(TypeError) as caught:
        await not_awaitable
    assert "; only what a call of an async def gives can be awaited, on" in str(
        UserFunctionError("ask", 1, caught.value)
    )


def test_errors_survive_what_cannot_be_shown() -> None:
    error = UserFunctionError("enrich", Awkward(), Awkward())
    assert "its message could not be read" in str(error)
    assert "<Awkward whose repr failed>" in str(error)


def test_extra_that_is_there_and_cannot_be_imported_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To install what is installed helps nobody: a library that it needs is not there, say."""
    (tmp_path / "halfway_there.py").write_text("raise ImportError('libz.so.1: cannot open it')")
    monkeypatch.syspath_prepend(tmp_path)
    why = re.escape("[it]: pip install 'asyncstream[it]' (ImportError: libz.so.1: cannot open it)")
    with pytest.raises(MissingExtra, match=rf"^This needs the extra {why}$"):
        module_of("it", "halfway_there", "This")


def test_messages_of_the_rest() -> None:
    assert "pip install 'asyncstream[web]'" in str(MissingExtra("the dashboard", "web"))
    assert str(RetriesExhausted(3, OSError("down"))) == "gave up after 3 attempts: OSError: down"
    assert str(RetriesExhausted(3, None)) == "gave up after 3 attempts: its result was refused"
    assert "another 1.5 s" in str(CircuitOpen(1.5))
    assert str(HttpError("http://api", 503, "busy", retryable=True)) == "http://api: 503 busy"
    assert str(HttpError("http://api", None, "no answer", retryable=True)) == "http://api: no answer"


@pytest.mark.parametrize(
    ("error", "shown"),
    [
        (ValueError("x"), "ValueError: x"),
        (ValueError(), "ValueError"),
        (KeyError("k"), "KeyError: 'k'"),
        (OSError(os.fsdecode(b"no \xc3\xa9, no \xe9")), "OSError: no é, no \\udce9"),
    ],
)
def test_describe_error(error: BaseException, shown: str) -> None:
    assert describe_error(error) == shown


def test_a_long_text_is_cut_and_says_so() -> None:
    text = describe_error(ValueError("x" * 10_000_000))
    assert text == f"ValueError: {'x' * 10_000}… and 9990000 characters more"
    assert describe_error(ValueError("x" * 10_000)) == f"ValueError: {'x' * 10_000}"
    assert len(str(UserFunctionError("enrich", None, OSError(text)))) < 10_200


def test_safe_repr_is_cut_and_never_raises() -> None:
    assert safe_repr("x" * 500, 10) == "'xxxxxxxx…"
    assert len(safe_repr("x" * 500)) == 200
    assert safe_repr(Awkward()) == "<Awkward whose repr failed>"


def test_no_message_says_where_an_object_is_in_memory() -> None:
    def price(order: int) -> int:
        return order

    price_of = f"{test_no_message_says_where_an_object_is_in_memory.__name__}.<locals>.price"
    assert safe_repr(price) == f"<function {price_of}>"
    assert safe_repr([price, 1]) == f"[<function {price_of}>, 1]"
    assert safe_repr(object()) == "<object object>"
    assert safe_repr(Lock()) == "<asyncio.locks.Lock object [unlocked]>"
    assert safe_repr("look at 0x1f, please") == "'look at 0x1f, please'"


def test_safe_repr_shows_no_password() -> None:
    assert safe_repr(["mysql://me:se:cr@t@host/db", 1]) == "['mysql://…@host/db', 1]"
    assert safe_repr("s3://:secret@host") == "'s3://…@host'"
    shown = ["http://host:80/me@home", "sqlite:///a:b@c", "me:you@home", "https://me@host"]
    assert safe_repr(shown) == repr(shown)


@pytest.mark.parametrize(
    "error",
    [
        UserFunctionError("enrich", 7, ValueError("x")),
        UserFunctionError("enrich", None, ValueError("x"), when="when it was opened"),
        HttpError("http://api", 503, "busy", retryable=True, retry_after="5", body=b"later"),
        RetriesExhausted(3, OSError("down")),
        CircuitOpen(1.5),
        MissingExtra("the dashboard", "web"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_errors_cross_process_borders(error: Exception) -> None:
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is type(error)
    assert str(copy) == str(error)
    assert vars(copy) == vars(error)


def test_what_is_told_already_comes_out_as_it_is() -> None:
    told = SinkBroken("the file is another job's")
    with pytest.raises(SinkBroken) as caught, told_as(SinkError, "write", Exception):
        raise told
    assert caught.value is told
    with (
        pytest.raises(SinkError, match="cannot write: ValueError: no"),
        told_as(SinkError, "write", Exception),
    ):
        raise ValueError("no")
