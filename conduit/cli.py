"""The `conduit` command: demo, ls, info, trace, gc.

Each command imports what it needs when it runs, so that `conduit --version` needs nothing. Errors of
`ConduitError` are one line on stderr and exit status 2, as are wrong arguments; Ctrl-C is 130.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Sequence

from conduit import ConduitError, __version__

__all__ = ["main"]


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command line and returns its exit status; `argv` defaults to the process's arguments.

    Raises:
        SystemExit: argparse's, for --help, --version and arguments that it refuses.
    """
    args = _parser().parse_args(argv)
    command: Callable[[argparse.Namespace], int] = args.command
    try:
        return command(args)
    except ConduitError as error:
        print(f"conduit: {' '.join(str(error).split())}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:  # `conduit info run1 | head`: whoever reads has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # for the flush at exit
        return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="conduit", description="Experience stores of this node.")
    parser.add_argument("--version", action="version", version=f"%(prog)s {__version__}")
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")

    demo = commands.add_parser("demo", help="train a DQN on CartPole from actor processes, with a report")
    demo.add_argument("--steps", type=_positive, help="env steps to give up after")
    demo.add_argument("--seed", type=int, help="seed of networks, environments and draws")
    demo.add_argument("--actors", type=_positive, help="actor processes")
    demo.add_argument("--out", help="folder for the plot")
    demo.set_defaults(command=_demo)

    ls = commands.add_parser("ls", help="list the stores of this node")
    ls.set_defaults(command=_ls)

    info = commands.add_parser("info", help="show a store's tables: fill and metrics")
    info.add_argument("name", help="the store's name")
    info.set_defaults(command=_info)

    trace = commands.add_parser("trace", help="write what a store's processes did, for ui.perfetto.dev")
    trace.add_argument("name", help="the store's name")
    trace.add_argument("--out", default="trace.json", help="the file to write (trace.json)")
    trace.add_argument("--seconds", type=_seconds, help="only the last so many; else all that is remembered")
    trace.set_defaults(command=_trace)

    gc = commands.add_parser("gc", help="remove the names that killed stores left behind")
    gc.add_argument("--dry-run", action="store_true", help="only say which")
    gc.set_defaults(command=_gc)
    return parser


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{value} is not at least 1")
    return value


def _seconds(text: str) -> float:
    value = float(text)
    if not value > 0:
        raise argparse.ArgumentTypeError(f"{value:g} is not above 0")
    return value


def _demo(args: argparse.Namespace) -> int:
    from conduit import demo

    given = {name: getattr(args, name) for name in ("steps", "seed", "actors", "out")}
    return demo.run([f"--{name}={value}" for name, value in given.items() if value is not None])


def _ls(_args: argparse.Namespace) -> int:
    from conduit import inspection

    inspection.print_stores()
    return 0


def _info(args: argparse.Namespace) -> int:
    from conduit import inspection

    inspection.print_store(args.name)
    return 0


def _trace(args: argparse.Namespace) -> int:
    from conduit import trace

    found = trace.write(args.name, args.out, args.seconds)
    print(f"{found.spans:,} spans of {found.seconds:.1f} s in {args.out}: open it in ui.perfetto.dev or chrome://tracing")
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
