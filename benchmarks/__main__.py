"""
Runs the benchmarks: `python -m benchmarks [name ...] [--quick] [--loop uvloop]`.
"""

from __future__ import annotations

import argparse
import pkgutil
import platform
from importlib import import_module

import benchmarks
from benchmarks.kit import use_loop

PREFIX = "bench_"

LONG = {"soak", "spark", "spark_files", "spark_turns"}
"""Run only when they are named: ten minutes each, or a Java machine."""


def main() -> None:
    known = [
        module.name.removeprefix(PREFIX)
        for module in pkgutil.iter_modules(benchmarks.__path__)
        if module.name.startswith(PREFIX)
    ]
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="name", help=f"of {', '.join(known)}")
    parser.add_argument("--quick", action="store_true", help="less work: to see that it runs")
    parser.add_argument("--loop", choices=("asyncio", "uvloop"), default="asyncio")
    arguments = parser.parse_args()
    if unknown := set(arguments.names) - set(known):
        parser.error(f"no such benchmark: {', '.join(sorted(unknown))}; there are: {', '.join(known)}")
    use_loop(arguments.loop)
    for name in arguments.names or [name for name in known if name not in LONG]:
        print(f"### {name} (Python {platform.python_version()}, {arguments.loop})\n", flush=True)
        import_module(f"benchmarks.{PREFIX}{name}").main(quick=arguments.quick)


if __name__ == "__main__":
    main()
