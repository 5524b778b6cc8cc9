"""`python -m tests.fuzz [TARGET ...] [--seconds N | --runs N]`: each target in processes of its own, one by one.

What a fuzzer has found interesting is kept in a folder by target (`--corpus`, `.fuzz` if not given), from which the
next run goes on; what broke something in `tests/fuzz/found/TARGET`, which every run and the unit tests try first.
"""

from __future__ import annotations

import argparse
import importlib
import logging
import os
import subprocess
import sys
import time
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.fuzz import TARGETS

FOUND = Path(__file__).parent / "found"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("targets", nargs="*", help=f"which ({', '.join(TARGETS)}); all if none is named")
    parser.add_argument("--seconds", type=int, default=0, help="for each target; 0: no limit")
    parser.add_argument("--runs", type=int, default=2_000_000, help="of each target, all jobs together (%(default)s)")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes of a target (%(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="of what is tried; 0: another one each time")
    parser.add_argument("--corpus", type=Path, default=Path(".fuzz"), help="folder of interesting inputs (%(default)s)")
    parser.add_argument("--here", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if unknown := set(arguments.targets) - set(TARGETS):
        parser.error(f"no target {', '.join(sorted(unknown))}; there are {', '.join(TARGETS)}")
    if arguments.here:
        return fuzz(arguments.targets[0], arguments)
    for name in arguments.targets or TARGETS:
        print(f"=== {name}", flush=True)
        if not all_jobs(name, arguments):
            print(f"=== {name}: a fault; its input is in {FOUND / name}")
            return 1
    return 0


def all_jobs(name: str, arguments: argparse.Namespace) -> bool:
    """Fuzz a target in several processes, which read what the others find. Whether none met a fault."""
    command = [sys.executable, "-m", "tests.fuzz", name, "--here", f"--corpus={arguments.corpus}"]
    command += [f"--seconds={arguments.seconds}", f"--runs={-(-arguments.runs // arguments.jobs)}"]
    seeds = [arguments.seed and arguments.seed + number for number in range(arguments.jobs)]
    jobs = [subprocess.Popen([*command, f"--seed={seed}"]) for seed in seeds]
    try:
        while None in (codes := [job.poll() for job in jobs]) and not any(codes):
            time.sleep(0.1)
        return not any(codes)
    finally:
        for job in jobs:
            job.terminate()
            job.wait()


def fuzz(name: str, arguments: argparse.Namespace) -> int:
    atheris: Any = importlib.import_module("atheris")  # no types; slow to load, and in [dev] only

    from tests.fuzz import targets

    for function in functions_of("conduit", "conduit_store"):  # the loader of an editable install is none that it knows
        atheris.instrument_func(function)
    logging.disable()
    corpus, found = arguments.corpus / name, FOUND / name
    corpus.mkdir(parents=True, exist_ok=True)
    found.mkdir(parents=True, exist_ok=True)
    target = targets.TARGETS[name]()
    for number, seed in enumerate(target.seeds):
        (corpus / f"seed-{number}").write_bytes(seed)
    options = [f"-max_total_time={arguments.seconds}", f"-runs={arguments.runs}", "-rss_limit_mb=4096"]
    options += [f"-seed={arguments.seed}", f"-max_len={target.most}"]
    options += [f"-artifact_prefix={found}/", "-print_final_stats=1", "-verbosity=0", "-timeout=60"]
    atheris.Setup([sys.argv[0], str(corpus), str(found), *options], lambda data: targets.fuzzed(target, data))
    atheris.Fuzz()
    return 0


def functions_of(*packages: str) -> Iterator[Any]:
    """Every Python function and method of the packages' loaded modules."""
    for name, module in list(sys.modules.items()):
        if name.split(".")[0] in packages:
            for value in list(vars(module).values()):
                for member in [value, *(vars(value).values() if isinstance(value, type) else ())]:
                    function = getattr(member, "__func__", getattr(member, "fget", getattr(member, "func", member)))
                    if isinstance(function, types.FunctionType) and function.__module__ == name:
                        yield function


if __name__ == "__main__":
    sys.exit(main())
