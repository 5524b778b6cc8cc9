"""Runs scenarios in one process with one Ray: `python -m tests.integration.rllib NAME...`; a JSON line for each."""

from __future__ import annotations

import json
import logging
import sys
import time
import traceback

import ray

from conduit import gc
from conduit_transport import names as runtime_names
from tests.integration.rllib import behaviour, exact, offline, on_policy

EXACT = exact.SCENARIOS | exact.LEARNERS | on_policy.SCENARIOS | on_policy.PROCESSES | offline.SCENARIOS
SCENARIOS = {
    **{f"exact_{name}": run for name, run in EXACT.items()},
    **behaviour.SCENARIOS,
    **on_policy.FLOWS,
    **offline.BEHAVIOUR,
    **offline.FLOWS,
}


def main(names: list[str]) -> int:
    """Run the scenarios called `names`, or all; returns how many failed."""
    logging.disable(logging.WARNING)
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, configure_logging=False)
    failed = 0
    for name in names or SCENARIOS:
        began = time.monotonic()
        error = None
        try:
            SCENARIOS[name]()
        except Exception:
            error = traceback.format_exc()
            failed += 1
        print(json.dumps({"scenario": name, "error": error, "seconds": round(time.monotonic() - began, 1)}), flush=True)
    ray.shutdown()
    # Ray kills its actors: where one was the last to hold a store, the name stays until somebody tidies up.
    for _ in range(50):
        gc.collect()
        if not runtime_names.list_names():
            break
        time.sleep(0.1)
    return failed


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
