"""
Holds the floors of the house, and what every module promises: `__all__`, a docstring, no surprise imports.

Everything is read from the source with `ast`; nothing is imported. Each rule is a function of one `Module`
that gives complaints, and the last tests show it a bad module, so that a rule that cannot fail is found out.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent / "asyncstream"

FLOORS = (
    (
        "addresses",
        "arguments",
        "errors",
        "elements",
        "clock",
        "codec",
        "filesystem",
        "former_names",
        "other_words",
        "shown",
        "validation",
    ),
    ("eventtime", "lease", "state", "metrics"),
    ("aside", "long_work", "sharing", "timers"),
    ("operators",),
    ("async_wait", "guards", "keyed", "windowing"),
    ("joins", "calls"),
    ("connectors",),
    ("plan", "checkpoint", "lookup"),
    ("runtime.aio", "runtime.spark"),
    ("pipeline", "telemetry"),
    ("testing", "web"),
    ("cli",),
    ("__main__",),
)
"""From the ground up. A package imports from lower floors and from itself."""

FLOOR_OF = {room: number for number, rooms in enumerate(FLOORS) for room in rooms}

SYNCHRONOUS = frozenset({*FLOORS[0], *FLOORS[1], "timers", "operators", "keyed", "windowing", "joins"})
"""State machines that are driven from outside: they know of no event loop, no network and no chance."""

BARRED_THERE = frozenset({"asyncio", "socket", "aiohttp", "anyio", "uvloop", "random", "threading"})

OPTIONAL = frozenset(
    {
        "aiokafka",
        "cachetools",
        "pytest",
        "rich",
        "fastapi",
        "starlette",
        "uvicorn",
        "rocksdict",
        "datasketches",
        "pyarrow",
        "pyspark",
        "redis",
        "polars",
        "fsspec",
        "zstandard",
        "uvloop",
        "httpx",
        "opentelemetry",
        "prometheus_client",
        "psycopg",
        "nats",
    }
)
"""Not there after a plain install, at least not everywhere: imported where they are used."""

SPARKS_OWN = ("runtime.spark.json_lines.format", "runtime.spark.sources.format")
"""Hold subclasses of Spark's classes, which Spark looks for by name; imported where they are registered."""

PYTESTS_OWN = "testing.plugin"
"""Imported by pytest, by its entry point."""

WALL_CLOCK = frozenset({"time", "time_ns", "now", "utcnow", "today", "localtime", "gmtime"})
"""What tells the time of day, of the modules `time` and `datetime`."""


@dataclass(frozen=True)
class Module:
    """
    One module of the package, parsed.

    Attributes:
        name: dotted, without the package's own name: "operators.base"; a package's `__init__` goes by
            the name of the package, and the package's own by "".
        is_package: it is an `__init__`.
    """

    name: str
    tree: ast.Module
    is_package: bool = False

    @property
    def room(self) -> str:
        """What stands in the table of floors; the modules of `runtime` by their second name too."""
        parts = self.name.split(".")
        return ".".join(parts[:2]) if parts[0] == "runtime" else parts[0]

    @cached_property
    def nodes(self) -> tuple[ast.AST, ...]:
        """All of the tree, for rules that look at everything."""
        return tuple(ast.walk(self.tree))

    @property
    def lines(self) -> int:
        """To the end of its last statement."""
        return max((node.end_lineno or 0 for node in self.tree.body), default=0)

    def imports(self) -> Iterator[tuple[str, ast.AST]]:
        """Every absolute dotted name that is imported anywhere in the module, and by which statement."""
        for node in self.nodes:
            if isinstance(node, ast.Import):
                for alias in node.names:
                    yield alias.name, node
            elif isinstance(node, ast.ImportFrom):
                base = self._absolute(node)
                for alias in node.names:
                    yield f"{base}.{alias.name}", node

    def _absolute(self, node: ast.ImportFrom) -> str:
        if not node.level:
            return node.module or ""
        here = ["asyncstream", *self.name.split(".")] if self.name else ["asyncstream"]
        if not self.is_package:
            here.pop()
        here = here[: len(here) - node.level + 1]
        return ".".join([*here, node.module] if node.module else here)

    def statements(self) -> Iterator[ast.stmt]:
        """Those of the top level; also those for type checkers, if `__getattr__` gives what they name."""
        gives = any(
            isinstance(node, ast.FunctionDef) and node.name == "__getattr__" for node in self.tree.body
        )
        for node in self.tree.body:
            yield node
            if gives and isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING"):
                yield from node.body

    def declared(self) -> list[str] | None:
        """The names in `__all__`, or None if there is none."""
        for node in self.tree.body:
            if isinstance(node, ast.Assign) and any(
                isinstance(target, ast.Name) and target.id == "__all__" for target in node.targets
            ):
                return list(ast.literal_eval(node.value))
        return None

    def defined(self) -> set[str]:
        """The classes and functions of the module that have a public name."""
        kinds = ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
        return {node.name for node in self.tree.body if isinstance(node, kinds) and node.name[0] != "_"}

    def assigned(self) -> set[str]:
        """The public names that the module gives to values."""
        found: set[str] = set()
        for node in self.statements():
            targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
            found.update(target.id for target in targets if isinstance(target, ast.Name))
        return {name for name in found if name[0] != "_"}

    def bound_by_import(self) -> set[str]:
        """The public names that imports at the top level of the module bind."""
        return {
            alias.asname or alias.name.split(".")[0]
            for node in self.statements()
            if isinstance(node, ast.Import | ast.ImportFrom)
            for alias in node.names
            if (alias.asname or alias.name)[0] != "_"
        }


@cache
def modules() -> dict[str, Module]:
    found = {}
    for path in sorted(ROOT.rglob("*.py")):
        parts = list(path.relative_to(ROOT).with_suffix("").parts)
        is_package = parts[-1] == "__init__"
        name = ".".join(parts[:-1] if is_package else parts)
        found[name] = Module(name, ast.parse(path.read_text(encoding="utf-8")), is_package)
    return found


def room_of(imported: str) -> str | None:
    """The room that an absolute dotted name lies in, or None if it is not one of ours."""
    parts = imported.split(".")
    if parts[0] != "asyncstream":
        return None
    return ".".join(parts[1:3]) if parts[1:2] == ["runtime"] else ".".join(parts[1:2])


# ---------------------------------------------------------------------- the rules


def keeps_to_its_floor(module: Module) -> Iterator[str]:
    if module.room in ("", "runtime"):
        return  # the package's own name stands above everything; `runtime` holds nothing
    if module.room not in FLOOR_OF:
        yield f"{module.room!r} stands on no floor"
        return
    floor = FLOOR_OF[module.room]
    for imported, _ in module.imports():
        room = room_of(imported)
        if room is None or room == module.room:
            continue
        if room not in FLOOR_OF:
            yield f"imports {imported}, which stands on no floor"
        elif FLOOR_OF[room] > floor:
            yield f"on floor {floor} imports {imported} from floor {FLOOR_OF[room]}"
        elif FLOOR_OF[room] == floor and floor > 0:  # the nouns of the ground floor may use each other
            yield f"imports {imported} from its own floor {floor}"


def reads_no_wall_clock(module: Module) -> Iterator[str]:
    if module.name == "clock":
        return
    for imported, _ in module.imports():
        if imported in {f"time.{name}" for name in WALL_CLOCK}:
            yield f"imports {imported}"
    for node in module.nodes:
        if not isinstance(node, ast.Attribute) or node.attr not in WALL_CLOCK:
            continue
        owner = ast.unparse(node.value)
        if owner in {"time", "datetime", "date", "datetime.datetime", "datetime.date"}:
            yield f"reads {owner}.{node.attr} in line {node.lineno}"


def is_synchronous_where_it_must(module: Module) -> Iterator[str]:
    if module.room not in SYNCHRONOUS:
        return
    for imported, node in module.imports():
        if imported.split(".")[0] in BARRED_THERE:
            yield f"imports {imported} in line {getattr(node, 'lineno', '?')}"
    if module.name == "operators.functions":  # what users subclass is async, and awaits its own methods
        return
    for node in module.nodes:
        if isinstance(node, ast.Await | ast.AsyncFor | ast.AsyncWith):
            yield f"awaits in line {node.lineno}"


def has_a_docstring(module: Module) -> Iterator[str]:
    docstring = ast.get_docstring(module.tree)
    if not docstring:
        yield "does not say in its first lines what it is for"
    elif not docstring.strip().split("\n\n")[0].rstrip().endswith((".", ":", "?")):
        yield "the first paragraph of its docstring is not a sentence"


def declares_what_it_defines(module: Module) -> Iterator[str]:
    declared = module.declared()
    if declared is None:
        if len(module.tree.body) > 1:  # more than a docstring
            yield "has no __all__"
        return
    if len(declared) != len(set(declared)):
        yield "names something twice in __all__"
    for name in sorted(module.defined() - set(declared)):
        yield f"defines {name}, which is not in __all__: add it, or give it an underscore"
    there = module.defined() | module.assigned()
    if module.is_package:
        there |= module.bound_by_import()
    for name in sorted(set(declared) - there):
        yield f"has {name} in __all__, and does not define it"


def reexports_what_it_imports(module: Module) -> Iterator[str]:
    """A package's `__init__` imports what it hands on, from inside the package, and it is public there."""
    if not module.is_package or module.declared() is None:
        return
    inside = "asyncstream." + module.name if module.name else "asyncstream"
    declared = set(module.declared() or ())
    for node in module.statements():
        if not isinstance(node, ast.ImportFrom) or node.module in ("__future__", "typing"):
            continue
        source = node.module or ""
        if not (source + ".").startswith(inside + "."):
            yield f"re-exports from outside: {source}"
            continue
        origin = modules().get(source.removeprefix("asyncstream").lstrip("."))
        for alias in node.names:
            if alias.name not in declared:
                yield f"imports {alias.name}, which is not in its __all__"
            if origin is not None and alias.name not in (origin.declared() or ()):
                yield f"re-exports {alias.name}, which is not in the __all__ of {source}"


def imports_only_what_is_declared(module: Module) -> Iterator[str]:
    """What one module takes from another is in the `__all__` of the other."""
    for node in module.nodes:
        if not isinstance(node, ast.ImportFrom) or not (node.module or "").startswith("asyncstream."):
            continue
        origin = modules().get((node.module or "").removeprefix("asyncstream."))
        if origin is None or origin.declared() is None:
            continue
        for alias in node.names:
            if alias.name not in (origin.declared() or ()) and f"{origin.name}.{alias.name}" not in modules():
                yield f"takes {alias.name} from {node.module}, which does not declare it"


def imports_optional_packages_late(module: Module) -> Iterator[str]:
    if module.name in (*SPARKS_OWN, PYTESTS_OWN):
        return
    optional = {
        id(node): imported
        for imported, node in module.imports()
        if imported.split(".")[0] in OPTIONAL or imported.startswith(OWN_NAMES)
    }
    for scope in scopes(module.tree) if optional else ():
        for node in ast.walk(scope):
            optional.pop(id(node), None)
    for imported in optional.values():
        yield f"imports {imported} when it is itself imported"


OWN_NAMES = tuple(f"asyncstream.{name}." for name in SPARKS_OWN)


def scopes(tree: ast.Module) -> Iterator[ast.AST]:
    """What does not run on import: functions, and what only type checkers look at."""
    for node in ast.walk(tree):
        guarded = isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING")
        if guarded or isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node


MOST_LINES = 500


def is_short_enough(module: Module) -> Iterator[str]:
    """A module that is longer is two rooms in one."""
    if module.lines > MOST_LINES:
        yield f"has {module.lines} lines, more than {MOST_LINES}: it is to be two modules"


def keeps_asserts_out_of_the_way(module: Module) -> Iterator[str]:
    """Nothing may depend on `python -O`: an assert may tell a type checker something, not do something."""
    for node in module.nodes:
        if isinstance(node, ast.Assert) and any(
            isinstance(part, ast.Call) and ast.unparse(part.func) not in ("isinstance", "len", "type")
            for part in ast.walk(node.test)
        ):
            yield f"asserts on a call in line {node.lineno}"


def places_each_of_its_modules(module: Module) -> Iterator[str]:
    """A package that tells in a table which modules are for what tells of all of them, and of no others."""
    _, head, table = (ast.get_docstring(module.tree) or "").partition("| modules | what they are |")
    if not module.is_package or not head:
        return
    prefix = f"{module.name}."
    inside = {name.removeprefix(prefix) for name in modules() if name.startswith(prefix)}
    there = {name for name in inside if "." not in name}
    rows = [line.split("|")[1] for line in table.splitlines() if line.startswith("|")]
    told = re.findall(r"`(\w+)`", " ".join(rows))
    for name in sorted(there.symmetric_difference(told)):
        yield f"does not tell of {name}" if name in there else f"tells of {name}, which is not there"


def names_the_encoding_of_text(module: Module) -> Iterator[str]:
    """Files are the same under every locale, and `python -X warn_default_encoding` has nothing to warn of."""
    for node in module.nodes:
        if not isinstance(node, ast.Call):
            continue
        function, given = ast.unparse(node.func), {each.arg: each.value for each in node.keywords}
        mode = given.get("mode", node.args[1] if len(node.args) > 1 else ast.Constant("r"))
        is_binary = not isinstance(mode, ast.Constant) or "b" in str(mode.value)
        is_text = (
            (function in ("open", "os.fdopen") and not is_binary)
            or function.endswith((".read_text", ".write_text"))
            or (function.startswith("subprocess.") and "text" in given)
        )
        if is_text and "encoding" not in given:
            yield f"calls {function} without encoding= in line {node.lineno}"


Rule = Callable[[Module], Iterator[str]]

RULES: tuple[Rule, ...] = (
    keeps_to_its_floor,
    reads_no_wall_clock,
    is_synchronous_where_it_must,
    has_a_docstring,
    declares_what_it_defines,
    reexports_what_it_imports,
    imports_only_what_is_declared,
    imports_optional_packages_late,
    is_short_enough,
    places_each_of_its_modules,
    keeps_asserts_out_of_the_way,
    names_the_encoding_of_text,
)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_every_module(rule: Rule) -> None:
    complaints = [
        f"{module.name or '__init__'}: {text}" for module in modules().values() for text in rule(module)
    ]
    assert complaints == []


def test_every_room_of_the_house_is_on_one_floor() -> None:
    rooms = [room for floor in FLOORS for room in floor]
    assert len(rooms) == len(set(rooms))
    assert {module.room for module in modules().values()} - {"", "runtime"} <= set(rooms)


def test_document_shows_the_floors() -> None:
    text = (ROOT.parent / "docs/architecture.md").read_text(encoding="utf-8")
    shown = re.findall(r"^\| \d+ \| (.+?) \|", text, re.MULTILINE)
    floors = [set(re.findall(r"`([\w.]+)`", rooms)) for rooms in reversed(shown)]
    former = {"arguments", "calls"}
    assert floors == [set(rooms) - former for rooms in FLOORS]


def test_document_names_the_low_rooms_that_await() -> None:
    text = (ROOT.parent / "docs/architecture.md").read_text(encoding="utf-8")
    said = re.search(r"^Up to `operators` nothing awaits but (.+?), nor do", text, re.MULTILINE)
    assert said is not None
    low = {room for floor in FLOORS[: FLOOR_OF["operators"]] for room in floor}
    kinds = ast.Await | ast.AsyncFor | ast.AsyncWith
    awaiting = {
        module.room
        for module in modules().values()
        if module.room in low and any(isinstance(node, kinds) for node in module.nodes)
    }
    assert set(re.findall(r"`(\w+)`", said[1])) == awaiting


def test_virtual_time_needs_nothing_of_the_house_but_its_errors() -> None:
    ours = {room_of(imported) for imported, _ in modules()["testing.loop"].imports()} - {None}
    assert ours == {"errors"}


# ---------------------------------------------------------------------- the rules can fail

BAD = """
from __future__ import annotations
import time
import asyncio
import rich
from datetime import datetime
from ..pipeline import Pipeline
from asyncstream.operators.base import _raise

__all__ = ("Missing", "Known", "Known")

class Known: ...

def forgotten():
    from asyncstream.runtime.aio import Job
    import cachetools
    assert Job.start()
    open("a").write(open("b", "rb").read())
    Path("c").write_text("", encoding="utf-8")
    Path("c").write_text("")
    return time.time(), datetime.now()
"""


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        (
            keeps_to_its_floor,
            ["imports asyncstream.pipeline.Pipeline from floor 9", "asyncstream.runtime.aio.Job"],
        ),
        (reads_no_wall_clock, ["time.time", "datetime.now"]),
        (is_synchronous_where_it_must, ["imports asyncio"]),
        (has_a_docstring, ["does not say"]),
        (declares_what_it_defines, ["twice", "defines forgotten", "has Missing in __all__"]),
        (imports_only_what_is_declared, ["takes _raise"]),
        (imports_optional_packages_late, ["imports rich"]),
        (keeps_asserts_out_of_the_way, ["asserts on a call"]),
        (names_the_encoding_of_text, ["write_text without encoding=", "calls open"]),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_rule_finds_what_is_wrong_in_a_bad_module(rule: Rule, expected: list[str]) -> None:
    complaints = list(rule(Module("windowing.bad", ast.parse(BAD))))
    assert len(complaints) == len(expected)
    for complaint, text in zip(complaints, expected, strict=True):
        assert text in complaint


def test_rule_finds_a_module_that_is_too_long() -> None:
    long, longer = (Module("long", ast.parse("a = 1\n" * lines)) for lines in (MOST_LINES, MOST_LINES + 1))
    assert list(is_short_enough(long)) == []
    assert list(is_short_enough(longer)) == ["has 501 lines, more than 500: it is to be two modules"]


def test_rule_finds_an_import_from_the_same_floor() -> None:
    bad = Module("windowing.bad", ast.parse("from asyncstream.guards import retry"))
    assert list(keeps_to_its_floor(bad)) == ["imports asyncstream.guards.retry from its own floor 4"]


def test_rule_finds_a_package_that_is_not_in_the_table() -> None:
    assert list(keeps_to_its_floor(Module("cellar", ast.parse("")))) == ["'cellar' stands on no floor"]


def test_rule_finds_a_package_that_hands_on_what_is_not_public() -> None:
    source = """
from asyncstream.operators.base import Operator, pairs, DISCARD
from asyncstream.clock import Clock
__all__ = ("Operator", "DISCARD", "Clock")
"""
    complaints = list(reexports_what_it_imports(Module("operators", ast.parse(source), is_package=True)))
    assert complaints[0] == "imports pairs, which is not in its __all__"
    assert complaints[-1] == "re-exports from outside: asyncstream.clock"


def test_rule_finds_a_package_that_does_not_place_its_modules() -> None:
    table = "Rooms:\n\n| modules | what they are |\n|---|---|\n| `strategy`, `cellar` | of `units` |\n"
    package = Module("eventtime", ast.parse(f'"""{table}"""'), is_package=True)
    complaints = ["tells of cellar, which is not there", "does not tell of units"]
    assert list(places_each_of_its_modules(package)) == complaints


def test_helpers_of_tests_are_not_in_modules_of_tests() -> None:
    """What several test modules use has a module of its own, so that none depends on the cases of another."""
    tests = Path(__file__).parent
    imports = re.compile(r"^\s*(?:from|import) tests\.(?:\w+\.)*test_\w+", re.MULTILINE)
    found = {
        str(path.relative_to(tests)): imports.findall(path.read_text(encoding="utf-8"))
        for path in tests.rglob("*.py")
    }
    assert not {path: lines for path, lines in found.items() if lines}
