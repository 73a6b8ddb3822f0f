"""
`asyncstream enrich`: asks a web service about each row of a file, and writes the rows with what it answers.

    asyncstream enrich in.csv --url 'https://api.example.com/planes/{tailnum}' --out out.jsonl --resume state

A row whose request fails for good (after retries) ends the run, unless `--failed` names a file for such rows.
A service that knows nothing of a row (404) leaves it as it is.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from string import Formatter
from typing import Any

from asyncstream.addresses import HTTP_METHODS
from asyncstream.checkpoint import Checkpoints, DirectoryStore
from asyncstream.cli.running import EVERY_SECONDS, RunOptions, add_run_options, run_pipeline, seconds
from asyncstream.cli.tables import FORMATS, columns_of, format_of, reading, writing
from asyncstream.connectors import JsonLinesSink, to_dead_letter
from asyncstream.connectors.lines import Malformed
from asyncstream.connectors.models import Unfit
from asyncstream.connectors.rows import MoreColumns
from asyncstream.errors import AsyncStreamError, PipelineError, UserFunctionError, describe_error
from asyncstream.pipeline import Pipeline
from asyncstream.validation import count, duration_seconds, file_path, text

__all__ = ("add_enrich_command", "enrichment")

CONCURRENCY = 50
"""Requests at once: a service that is not asked first should bear them."""


def add_enrich_command(commands: Any, shared: argparse.ArgumentParser) -> None:
    """Add `enrich` to the commands of a parser, with the options that every command has."""
    enrich = commands.add_parser(
        "enrich",
        parents=[shared],
        help="ask a web service about each row of a file, and write the rows with its answers",
        epilog="Files are CSV, TSV or JSON lines, perhaps compressed (.gz, or .zst with the extra [zstd]), "
        "or Parquet (with the extra [arrow]), as their names end. With --resume, Parquet is written as a "
        "directory of parts.",
    )
    enrich.add_argument("input", metavar="IN", help="the file of rows")
    enrich.add_argument(
        "--url",
        required=True,
        help="a template whose fields are columns of the row: 'https://api.example.com/planes/{tailnum}'",
    )
    enrich.add_argument("--out", required=True, metavar="OUT", help="the file to write")
    enrich.add_argument(
        "--resume", metavar="DIR", help="keep progress here, and go on from there if started again"
    )
    enrich.add_argument(
        "--every",
        type=seconds,
        metavar="S",
        help=f"seconds between two checkpoints in DIR ({EVERY_SECONDS:g})",
    )
    enrich.add_argument("--overwrite", action="store_true", help="replace what OUT and FILE hold already")
    enrich.add_argument(
        "--failed", metavar="FILE", help="write rows that fail here, as JSON lines, and go on with the others"
    )
    _add_request(enrich)
    rows = enrich.add_argument_group("rows")
    rows.add_argument(
        "--into",
        metavar="COLUMN",
        help="put the answer into one column; by default its fields become columns and may replace others",
    )
    rows.add_argument(
        "--columns",
        metavar="A,B,...",
        help="columns of OUT, unless it is JSON (all); what a row lacks of them is empty",
    )
    rows.add_argument("--order", choices=("ordered", "unordered"), default="ordered", help="of OUT (ordered)")
    rows.add_argument("--in-format", choices=FORMATS, help="what IN is, whatever its name")
    rows.add_argument("--out-format", choices=FORMATS, help="what OUT is, whatever its name")
    add_run_options(enrich, "--resume")
    enrich.set_defaults(do=_enrich)


def _add_request(enrich: argparse.ArgumentParser) -> None:
    request = enrich.add_argument_group("requests")
    request.add_argument(
        "--concurrency",
        type=int,
        default=CONCURRENCY,
        metavar="N",
        help=f"at most so many at once ({CONCURRENCY})",
    )
    request.add_argument("--rate", type=int, metavar="N", help="at most so many per second")
    request.add_argument(
        "--timeout", type=seconds, default=10.0, metavar="S", help="seconds for one, with its answer (10)"
    )
    request.add_argument(
        "--attempts", type=int, metavar="N", help="at most so many tries per row (5; POST and PATCH: 1)"
    )
    request.add_argument(
        "--cache", type=seconds, metavar="S", help="reuse the answer to an equal request for so many seconds"
    )
    request.add_argument("--method", choices=HTTP_METHODS, help="GET; with --send-row POST")
    request.add_argument("--send-row", action="store_true", help="send the row, as JSON")
    request.add_argument(
        "--header",
        action="append",
        default=[],
        metavar="'NAME: VALUE'",
        help="send this with every request; @FILE reads headers from a file, out of sight of process lists",
    )


def _enrich(options: argparse.Namespace) -> int:
    how = RunOptions.of(options, "--resume", is_kept=options.resume is not None)
    checkpoints = None
    every = EVERY_SECONDS if options.every is None else options.every
    if options.resume is not None:
        checkpoints = Checkpoints(store=DirectoryStore(options.resume), every=every)
    elif options.every is not None:
        raise PipelineError("--every needs --resume: without it, no progress is kept")

    def hint(error: AsyncStreamError) -> str | None:
        if not options.failed and _has_cause(error, UserFunctionError, Malformed, Unfit):
            return "--failed FILE writes rows that fail there, and goes on with the others"
        if not options.columns and _has_cause(error, MoreColumns):
            return "--columns A,B,... names the columns of OUT; without it they are those of the first row"
        return None

    return run_pipeline(enrichment(options), checkpoints, how, hint)


def _has_cause(error: BaseException | None, *kinds: type[Exception]) -> bool:
    """Whether an error is one of these, or comes of one."""
    while error is not None and not isinstance(error, kinds):
        error = error.__cause__
    return error is not None


def enrichment(options: argparse.Namespace) -> Pipeline:
    """The pipeline that the options describe; raises `PipelineError` if they cannot be."""
    # aiohttp, which other commands would wait for: a third of the time that they take to start
    from asyncstream.connectors.http import HttpLookup

    in_format = format_of(options.input, options.in_format, "--in-format")
    out_format = format_of(options.out, options.out_format, "--out-format")
    _check_input(Path(options.input), in_format)
    _check_url(options, in_format)
    _check_new(options)
    _check_figures(options)
    columns = _columns(options, in_format)
    lookup = HttpLookup(
        options.url,
        merge=_merge(
            None if options.into is None else text("--into", options.into),
            () if columns is None or out_format == "jsonl" else columns,
        ),
        method=options.method or ("POST" if options.send_row else "GET"),
        json=_whole if options.send_row else None,
        headers=_headers(options.header),
        concurrency=options.concurrency,
        timeout=options.timeout,
        attempts=options.attempts,
        rate=options.rate,
        cache_ttl=options.cache,
    )
    pipeline = Pipeline("enrich")
    source = reading(options.input, in_format, rejects=options.failed is not None)
    rows = pipeline.source(source, name="rows")
    enriched = rows.async_map(
        lookup,
        name="requests",
        order=options.order,
        concurrency=options.concurrency,
        on_error="route" if options.failed else "fail",
    )
    enriched.to(writing(options.out, out_format, columns, overwrite=options.overwrite), name="out")
    if options.failed:
        aside = enriched.failed.map(to_dead_letter)
        if source.rejects:
            aside = aside.union(rows.rejected, name="aside")
        existing: Any = "overwrite" if options.overwrite else "refuse"
        aside.to(JsonLinesSink(options.failed, existing=existing), name="failed")
    return pipeline


def _check_input(path: Path, in_format: str) -> None:
    """Refuse what is no file of rows."""
    if path.is_file() or (in_format == "parquet" and path.is_dir()):
        return
    if not path.exists():
        raise PipelineError(f"there is no file {path}")
    kind = "directory" if path.is_dir() else "pipe or a device"
    raise PipelineError(f"{path} is a {kind}, not a file: a run that was cut off could not go on reading it")


def _columns(options: argparse.Namespace, in_format: str) -> list[str] | None:
    """The columns to write; None: all."""
    if options.columns is None:
        return None
    columns: list[str] = options.columns.split(",")
    if "" in columns and "" not in (columns_of(options.input, in_format) or ()):
        raise PipelineError(
            f"--columns: expected names of columns with commas between them, got {options.columns!r}; leave "
            "it out to write all"
        )
    return columns


def _check_url(options: argparse.Namespace, in_format: str) -> None:
    """Refuse a template that does not go with the rows."""
    try:
        fields = [field for _, field, _, _ in Formatter().parse(options.url) if field is not None]
    except ValueError as error:
        raise PipelineError(f"--url: {error}; write a literal brace twice") from error
    if "" in fields:
        raise PipelineError("--url: expected the name of a column between { and }, got none")
    if not fields and not options.send_row:
        raise PipelineError(
            "--url: expected a column of the rows in it, as {name}; without one, all requests are the same"
        )
    columns = columns_of(options.input, in_format)
    if columns is None:
        return
    for field in fields:
        if field not in columns:
            names = ", ".join(columns) or "none"
            raise PipelineError(f"--url: {options.input} has no column {field!r}; it has: {names}")


def _check_new(options: argparse.Namespace) -> None:
    """Refuse to write over what is there, before anything is asked."""
    goes_on = options.resume is not None and Path(options.resume).exists()
    for option, path in (("--out", options.out), ("--failed", options.failed)):
        if path is None:
            continue
        file_path(option, path)
        if _is_same(path, options.input):
            raise PipelineError(f"{path} is the file to read, and cannot be written at the same time")
        if not (goes_on or options.overwrite) and Path(path).exists():
            raise PipelineError(f"{path} exists: --overwrite replaces it")
    if options.failed is not None and _is_same(options.failed, options.out):
        raise PipelineError(f"--out and --failed are one file, {options.out}")


def _check_figures(options: argparse.Namespace) -> None:
    """Refuse figures that cannot be by the names that they have here: advice is for who writes Python."""
    for option in ("concurrency", "attempts", "rate"):
        if (number := getattr(options, option)) is not None:
            count(f"--{option}", number)
    for option in ("timeout", "cache"):
        if (length := getattr(options, option)) is not None:
            duration_seconds(f"--{option}", length)


def _is_same(one: str, other: str) -> bool:
    """Whether two paths lead to one file, by whatever links."""
    if os.path.exists(one) and os.path.exists(other):
        return os.path.samefile(one, other)
    return os.path.realpath(one) == os.path.realpath(other)


def _headers(given: list[str]) -> dict[str, str]:
    lines: list[str] = []
    for header in given:
        if header.startswith("@"):
            try:
                lines += Path(header[1:]).read_text(encoding="utf-8").splitlines()
            except (OSError, UnicodeError) as error:
                raise PipelineError(f"--header: {describe_error(error)}") from error
        else:
            lines.append(header)
    headers: dict[str, str] = {}
    for line in filter(str.strip, lines):
        name, colon, value = line.partition(":")
        if not colon or not name.strip():  # without what came: it may be a key
            raise PipelineError("--header: expected 'Name: value', got something without a name or a colon")
        headers[name.strip()] = value.strip()
    return headers


def _whole(row: Any) -> Any:
    return row


def _merge(into: str | None, columns: Sequence[str]) -> Callable[[Any, Any], Any]:
    """What makes the result of a row and the answer about it; it has these columns, and perhaps more."""
    nothing = dict.fromkeys(columns)

    def merge(row: Any, answer: Any) -> Any:
        if into is not None:
            return {**nothing, **row, into: answer}
        if answer is None:
            return {**nothing, **row}
        if not isinstance(answer, Mapping):
            raise TypeError(
                f"the answer is not an object, but of type {type(answer).__name__}: --into gives it a column"
            )
        return {**nothing, **row, **answer}

    return merge
