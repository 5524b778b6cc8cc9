"""The `conduit` command: demo, bench, ls, info, trace, checkpoint, restore, verify, export, import, gc.

Each command imports what it needs when it runs, so that `conduit --version` needs nothing. Errors of
`ConduitError` are one line on stderr and exit status 2, as are wrong arguments; Ctrl-C is 130, with a line as well.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from conduit import ConduitError, __version__, interrupt

__all__ = ["main"]


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command line and returns its exit status; `argv` defaults to the process's arguments.

    Raises:
        SystemExit: argparse's, for --help, --version and arguments that it refuses.
    """
    try:
        interrupt.late()
        args = _parser().parse_args(argv)
        command: Callable[[argparse.Namespace], int] = args.command
        return command(args)
    except ConduitError as error:
        print(f"conduit: {' '.join(str(error).split())}{_notes(error)}", file=sys.stderr)
        return 2
    except KeyboardInterrupt as error:
        print(f"{interrupt.MESSAGE}{_notes(error)}", file=sys.stderr)
        return interrupt.STATUS
    except BrokenPipeError:  # `conduit info run1 | head`: whoever reads has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # for the flush at exit
        return 0


def _notes(error: BaseException) -> str:
    """What is left behind, where an error says so."""
    return "".join(f"; {note}" for note in getattr(error, "__notes__", ()))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="conduit", description="Experience stores of this node.")
    parser.add_argument("--version", action="version", version=f"%(prog)s {__version__}")
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")

    demo = commands.add_parser("demo", help="RLlib's DQN on CartPole, stock and then through Conduit, with a report")
    demo.add_argument("--steps", type=_positive, help="env steps of each run; with --plain, to give up after")
    demo.add_argument("--seed", type=int, help="seed of networks, environments and draws")
    demo.add_argument("--out", help="folder for the plot")
    demo.add_argument("--plain", action="store_true", help="without RLlib: a DQN in plain PyTorch, actor processes")
    demo.add_argument("--actors", type=_positive, help="actor processes; only with --plain")
    demo.set_defaults(command=_demo, parser=demo)

    bench = commands.add_parser("bench", help="measure on this machine")
    benches = bench.add_subparsers(title="benchmarks", required=True, metavar="WHAT")
    rllib = benches.add_parser("rllib", help="a training step of RLlib, stock and through Conduit in turns")
    rllib.add_argument("--quick", action="store_true", help="four of the cells, short: a few minutes")
    only = "cells, as in 'dqn/*/64x64/0'; may be given again for more of them"
    rllib.add_argument("--only", action="append", metavar="PATTERN", default=[], help=only)
    rllib.add_argument("--steps", type=_positive, metavar="N", help="training steps of each side (300, quick 200)")
    rllib.add_argument("--rounds", type=_positive, metavar="R", help="turns that they are divided into (6, quick 4)")
    rllib.add_argument("--out", type=Path, metavar="DIR", help="folder of the results (runs/<time>-bench-rllib)")
    rllib.add_argument("--seed", type=int, metavar="S", default=1, help="seed of both sides (%(default)s)")
    rllib.add_argument("--threads", type=_positive, metavar="T", help="torch threads of both sides (torch's choice)")
    rllib.set_defaults(command=_bench_rllib)

    ls = commands.add_parser("ls", help="list the stores of this node")
    ls.set_defaults(command=_ls)

    info = commands.add_parser("info", help="show a store's tables: fill and metrics")
    info.add_argument("name", help="the store's name")
    info.add_argument("--table", metavar="T", help="this table alone, with how ages and priorities are spread")
    info.set_defaults(command=_info)

    trace = commands.add_parser("trace", help="write what a store's processes did, for ui.perfetto.dev")
    trace.add_argument("name", help="the store's name")
    trace.add_argument("--out", default="trace.json", help="the file to write (trace.json)")
    trace.add_argument("--seconds", type=_seconds, help="only the last so many; else all that is remembered")
    trace.set_defaults(command=_trace)

    save = commands.add_parser("checkpoint", help="save a store into a folder, while everybody goes on")
    save.add_argument("name", help="the store's name")
    save.add_argument("folder", help="where its checkpoints are; what is there already is not written again")
    save.add_argument("--keep", type=_positive, default=1, metavar="N", help="how many stay there (%(default)s)")
    save.set_defaults(command=_checkpoint)

    restore = commands.add_parser("restore", help="make a store of a checkpoint, and hold it until Ctrl-C")
    restore.add_argument("folder", help="where its checkpoints are")
    restore.add_argument("name", nargs="?", help="the store's name (the one that it had)")
    restore.add_argument("--host-memory", metavar="SIZE", help="what its tables may take, as 4GiB (as it was)")
    restore.add_argument("--number", type=_positive, metavar="N", help="which checkpoint of the folder (the newest)")
    restore.set_defaults(command=_restore)

    verify = commands.add_parser("verify", help="check every byte of a checkpoint, or all of a live store's index")
    verify.add_argument("what", help="a folder, or the name of a store")
    verify.set_defaults(command=_verify)

    formats = ("parquet", "arrow", "arrow-stream", "numpy", "minari", "rllib", "tensordict")
    sources = (*formats, "rllib-json")
    export = commands.add_parser(
        "export",
        help="write a table's rows to a file that others read",
        description="Write the rows of a table to a file or folder, while others go on using it.",
        epilog="examples:\n  conduit export run1 replay replay.parquet\n"
        "  conduit export run1 replay expert --format minari",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    export.add_argument("name", help="the store's name")
    export.add_argument("table", help="the table's name")
    export.add_argument("path", type=Path, help="the file or folder to write")
    export.add_argument("--format", choices=formats, help="what to write, if the path's suffix does not say so")
    export.add_argument("--compression", metavar="C", help="as the format calls it: zstd, snappy, lz4, deflate, none")
    export.add_argument("--overwrite", action="store_true", help="replace what is there, once the new one is whole")
    export.set_defaults(command=_export)

    load = commands.add_parser(
        "import",
        help="fill a new table with the rows of a file",
        description="Create a table of a store that lives with the rows of a file or folder.",
        epilog="examples:\n  conduit import replay.parquet run1 again\n"
        "  conduit import data/ run1 expert --max-size 100000 --rename observations=obs",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    load.add_argument("path", type=Path, help="the file or folder to read")
    load.add_argument("name", help="the store's name")
    load.add_argument("table", help="the name of the table to create")
    load.add_argument("--format", choices=sources, help="what it is, if neither suffix nor content say so")
    load.add_argument(
        "--max-size", type=_positive, metavar="N", help="rows that the table holds; the newest stay (all)"
    )
    load.add_argument(
        "--rename",
        type=_pair,
        action="append",
        default=[],
        metavar="OLD=NEW",
        help="call a column otherwise; repeatable",
    )
    load.set_defaults(command=_import)

    gc = commands.add_parser("gc", help="remove the names that killed stores left behind")
    gc.add_argument("--dry-run", action="store_true", help="only say which")
    gc.set_defaults(command=_gc)
    return parser


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{value} is not at least 1")
    return value


def _pair(text: str) -> tuple[str, str]:
    old, equals, new = text.partition("=")
    if not (old and equals and new):
        raise argparse.ArgumentTypeError(f"{text!r} is not OLD=NEW")
    return old, new


def _seconds(text: str) -> float:
    value = float(text)
    if not value > 0:
        raise argparse.ArgumentTypeError(f"{value:g} is not above 0")
    return value


def _demo(args: argparse.Namespace) -> int:
    if args.actors is not None and not args.plain:
        args.parser.error("--actors: only with --plain; RLlib's demo has one env runner, in the driver")
    from conduit import demo

    if not args.plain:
        return demo.run_rllib(steps=args.steps, seed=args.seed, out=args.out and Path(args.out))
    given = {name: getattr(args, name) for name in ("steps", "seed", "actors", "out")}
    return demo.run([f"--{name}={value}" for name, value in given.items() if value is not None])


def _bench_rllib(args: argparse.Namespace) -> int:
    from conduit.rllib import grid

    options = ("quick", "only", "steps", "rounds", "seed", "threads", "out")
    return grid.run(**{name: getattr(args, name) for name in options})


def _ls(_args: argparse.Namespace) -> int:
    from conduit import inspection

    inspection.print_stores()
    return 0


def _info(args: argparse.Namespace) -> int:
    from conduit import inspection

    if args.table is not None:
        inspection.print_table(args.name, args.table)
    else:
        inspection.print_store(args.name)
    return 0


def _trace(args: argparse.Namespace) -> int:
    from conduit import trace

    found = trace.write(args.name, args.out, args.seconds)
    print(f"{found.spans:,} spans of {found.seconds:.1f} s in {args.out}: open it in ui.perfetto.dev or chrome://tracing")
    return 0


def _checkpoint(args: argparse.Namespace) -> int:
    from conduit.checkpoints import commands

    return commands.checkpoint(args.name, args.folder, args.keep)


def _restore(args: argparse.Namespace) -> int:
    from conduit.checkpoints import commands

    return commands.restore(args.folder, args.name, args.host_memory, args.number)


def _verify(args: argparse.Namespace) -> int:
    from conduit.checkpoints import commands

    return commands.verify_any(args.what)


def _export(args: argparse.Namespace) -> int:
    from conduit import Store

    with Store.attach(args.name, read_only=True) as store:
        rows = store.table(args.table).export(
            args.path, args.format, compression=args.compression, overwrite=args.overwrite, progress=True
        )
    print(f"{rows:,} rows of {args.name}/{args.table} in {args.path}")
    return 0


def _import(args: argparse.Namespace) -> int:
    from conduit import Store

    with Store.attach(args.name) as store:
        table = store.import_table(
            args.table, args.path, args.max_size, format=args.format, rename=dict(args.rename), progress=True
        )
        print(f"{len(table):,} rows of {args.path} in {args.name}/{args.table}")
    return 0


def _gc(args: argparse.Namespace) -> int:
    from conduit.gc import collect

    removed = collect(dry_run=args.dry_run)
    for name in removed:
        print(f"{'stale' if args.dry_run else 'removed'}: {name}")
    if not removed:
        print("nothing to remove")
    return 0


if __name__ == "__main__":
    sys.exit(main())
