"""`python -m bench [names…]`: run all benchmarks, or the named ones, and say which aims were met."""

from __future__ import annotations

import argparse
import importlib
import sys
import time
from pathlib import Path

from bench import report
from bench.harness import QUICK, Settings

NAMES = (
    "breaker",
    "limiter",
    "retry",
    "refusal",
    "threads",
    "memory",
    "imports",
    "adaptive",
    "durable",
    "fleet",
    "postgres",
    "store",
    "live",
    "page",
    "mcp",
)
BY_NAME = ("fleet_scale", "torture")  # beside no peer, and they take long: only when they are asked for


def main() -> int:
    """Run what was asked for; 1 with `--check` and an aim that was missed."""
    parser = _parser()
    options = parser.parse_args()
    if unknown := sorted(set(options.names) - {*NAMES, *BY_NAME}):
        parser.error(f"no benchmark named {', '.join(unknown)}; there are {', '.join((*NAMES, *BY_NAME))}")
    settings = Settings(**(QUICK if options.quick else {}), peers_only=options.peers, collect=options.gc)
    started = time.perf_counter()
    print(report.machine())
    print(", ".join(f"{name} {version}" for name, version in report.versions().items()), end="\n\n", flush=True)
    tables = []
    for name in options.names or NAMES:
        for table in importlib.import_module(f"bench.{name}").run(settings):
            print(table, end="\n\n", flush=True)
            tables.append(table)
    if options.json:
        report.save(options.json, tables)
    verdicts = [verdict.met for table in tables for verdict in table.verdicts]
    missed = verdicts.count(False)
    print(f"{verdicts.count(True)} aims met, {missed} missed; {time.perf_counter() - started:.0f} s")
    return 1 if missed and options.check else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m bench", description="Holdfast beside its peers, in one run.")
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join((*NAMES, *BY_NAME)))
    parser.add_argument("--quick", action="store_true", help="two and a half minutes instead of thirteen; rougher")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the tables there too")
    parser.add_argument("--peers", action="store_true", help="leave Holdfast out")
    parser.add_argument("--gc", action="store_true", help="leave the garbage collector on while timing")
    parser.add_argument("--check", action="store_true", help="exit with 1 if an aim was missed")
    return parser


if __name__ == "__main__":
    sys.exit(main())
