"""What `make run` starts: `conduit demo`, but Ctrl-C during the imports ends it quietly too, with status 130.

Standard library only, and little of it, until the handler is set.
"""

import os
import signal
import sys


def _quit(*_: object) -> None:
    os._exit(130)


if __name__ == "__main__":
    signal.signal(signal.SIGINT, _quit)
    from conduit.cli import main

    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        status = main(["demo", *sys.argv[1:]])
    except KeyboardInterrupt:
        status = 130
    sys.exit(status)
