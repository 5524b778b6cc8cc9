"""`python -m bench`: run cases, compare with peers, set peers up, draw the report again."""

from __future__ import annotations

import argparse
import json
import signal
import sys
from pathlib import Path
from typing import Any

from bench import report
from bench.cases import DRIVERS, Case, choose, takes_part
from bench.driver import IMPORTS
from bench.machine import describe
from bench.peers import setup
from bench.runner import QUICK, Clock, Plan, run_case


def main() -> int:
    arguments = parser().parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        done: int = arguments.command(arguments)
    except KeyboardInterrupt:
        print("\ninterrupted; processes of the case are ended, finished cases are kept", file=sys.stderr)
        return 130
    except (ValueError, RuntimeError) as error:
        print(f"bench: {error}", file=sys.stderr)
        return 2
    return done


def parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(prog="python -m bench", description="Benchmarks of Conduit; see docs/benchmarks.md.")
    commands = top.add_subparsers(title="commands")
    top.set_defaults(command=run, quick=False, only=[], drivers=["conduit"], rounds=None, out=report.FOLDER)

    one = commands.add_parser("run", help="the product beside its ceilings; JSON lines on stdout (the default)")
    one.set_defaults(command=run, drivers=["conduit"])
    both = commands.add_parser(
        "compare", help="product, baseline and peers in turns; table, JSON lines, markdown, plot"
    )
    both.set_defaults(command=compare)
    both.add_argument("--drivers", type=lambda s: s.split(","), default=list(DRIVERS), help=f"of {','.join(DRIVERS)}")
    both.add_argument("--name", help="of the files of the results (compare, or quick)")
    both.add_argument("--out", type=Path, default=report.FOLDER, help="folder of the results (%(default)s)")
    for command in (one, both):
        command.add_argument("--quick", action="store_true", help="the cases with targets, short: one to two minutes")
        command.add_argument(
            "--only", action="append", default=[], metavar="PATTERN", help="cases, as in 'sample/W1/*'"
        )
        command.add_argument("--rounds", type=int, help="turns of each library (5, quick 3)")

    peers = commands.add_parser("peers", help="the peers' environments")
    peers.set_defaults(command=peers_command)
    peers.add_argument("--setup", action="store_true", help="build those that are missing")
    peers.add_argument("names", nargs="*", default=list(setup.PEERS), help=f"of {', '.join(setup.PEERS)}")
    commands.add_parser("list", help="names of all cases").set_defaults(command=list_cases)
    again = commands.add_parser("report", help="markdown, plot and tables again from a results file")
    again.set_defaults(command=again_command)
    again.add_argument("results", type=Path, nargs="?", default=report.FOLDER / "compare.jsonl")
    return top


def run(arguments: argparse.Namespace) -> int:
    """The product alone: one JSON line a case."""
    failed = 0
    cases = choose(arguments.quick, arguments.only)
    for case in cases:
        for line in run_case(case, ["conduit"], plan(arguments)):
            print(json.dumps(line), flush=True)
            failed += "error" in line
    return 1 if failed else 0


def compare(arguments: argparse.Namespace) -> int:
    """Everything in turns. Returns 1 when the product failed a case; a missed target is shown, not an error."""
    drivers = ready(arguments.drivers)
    cases = [c for c in choose(arguments.quick, arguments.only) if any(takes_part(d, c) for d in drivers)]
    name = arguments.name or ("quick" if arguments.quick else "compare")
    arguments.out.mkdir(parents=True, exist_ok=True)
    path = arguments.out / f"{name}.jsonl"
    machine = describe()
    if left_out := [d for d in arguments.drivers if d not in drivers]:
        machine["machine"]["left_out"] = "; ".join(f"{d}: {why_missing(d)}" for d in left_out)
    records: list[dict[str, Any]] = []
    try:
        with path.open("w", encoding="utf-8") as file:
            print(json.dumps(machine), file=file, flush=True)
            for line in progress(cases, drivers, plan(arguments)):
                records.append(line)
                print(json.dumps(line), file=file, flush=True)
    finally:
        if records:
            from rich.console import Console

            report.show(records, Console(width=None if sys.stdout.isatty() else 200))
            files = report.write(machine["machine"], records, arguments.out, name)
            print("kept in", ", ".join(str(p) for p in (path, *files)))
    return 1 if any("error" in r and r["driver"] == "conduit" for r in records) else 0


def progress(cases: list[Case], drivers: list[str], chosen: Plan) -> Any:
    """Run the cases; say on stderr which is at work and how long it will take."""
    clock = Clock([chosen.estimate_s(c, sum(takes_part(d, c) for d in drivers)) for c in cases])
    terminal = sys.stderr.isatty()
    for i, case in enumerate(cases, 1):
        head = f"[{i}/{len(cases)}] {case.name}"
        if terminal:
            print(f"\r\033[K{head}  {minutes(clock.left_s)} to go", end="", file=sys.stderr, flush=True)
        lines = run_case(case, drivers, chosen)
        clock.step()
        yield from lines
        shown = "  ".join(f"{r['driver']} {report.cell(r)}" for r in lines)
        start = "\r\033[K" if terminal else ""
        unit = report.UNITS.get(case.op, "us")
        print(f"{start}{head}: {shown} {unit}  [{minutes(clock.left_s)} to go]", file=sys.stderr, flush=True)


def plan(arguments: argparse.Namespace) -> Plan:
    chosen = QUICK if arguments.quick else Plan()
    if arguments.rounds is None:
        return chosen
    if arguments.rounds < 1:
        raise ValueError(f"--rounds {arguments.rounds}: at least 1")
    return Plan(arguments.rounds, chosen.slice_s, chosen.cross_slice_s)


def ready(drivers: list[str]) -> list[str]:
    """The drivers without peers that are not set up (said on stderr).

    Raises:
        ValueError: an unknown driver.
    """
    unknown = [d for d in drivers if d not in DRIVERS]
    if unknown:
        raise ValueError(f"unknown driver {unknown[0]!r}; there are {', '.join(DRIVERS)}")
    missing = [d for d in drivers if d in IMPORTS and not setup.is_ready(setup.environment(d) or d)]
    for name in missing:
        print(f"{name} is left out: {why_missing(name)}", file=sys.stderr)
    return [d for d in drivers if d not in missing]


def why_missing(driver: str) -> str:
    """Why a driver takes no part."""
    environment = setup.environment(driver)
    if environment is None:
        return f"{IMPORTS[driver]} is not installed"
    return setup.failure(driver) or f"not set up: python -m bench peers --setup {environment}"


def minutes(seconds: float) -> str:
    return f"{int(seconds) // 60}:{int(seconds) % 60:02d}"


def peers_command(arguments: argparse.Namespace) -> int:
    """Build the environments, or say which are ready."""
    unknown = [p for p in arguments.names if p not in setup.PEERS]
    if unknown:
        raise ValueError(f"unknown peer {unknown[0]!r}; there are {', '.join(setup.PEERS)}")
    if arguments.setup:
        setup.set_up(tuple(arguments.names))  # a peer that cannot be installed is said, there and in the report
        return 0
    for peer in arguments.names:
        state = "ready" if setup.is_ready(peer) else setup.failure(peer) or "not set up"
        print(f"{peer}: {state} ({setup.pins(peer)})")
    return 0


def list_cases(arguments: argparse.Namespace) -> int:
    for case in choose(quick=False, patterns=[]):
        print(case.name)
    return 0


def again_command(arguments: argparse.Namespace) -> int:
    """Tables on the terminal, files beside the results."""
    from rich.console import Console

    if not arguments.results.exists():
        raise ValueError(f"no results in {arguments.results}: run `python -m bench compare` first")
    machine, records = report.load(arguments.results)
    report.show(records, Console())
    report.write(machine, records, arguments.results.parent, arguments.results.stem)
    return 0


if __name__ == "__main__":
    sys.exit(main())
