"""Time of an import statement, and what it pulls in."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from typing import Any

import numpy as np
import numpy.typing as npt

from bench.timing import Slices

HEAVY = ("torch", "ray", "cupy", "pyarrow", "gymnasium")  # what `import conduit` must not pull in


class ImportCase:
    """Seconds of `import NAME` in fresh interpreters, and which heavy modules it pulled in."""

    def __init__(self, module: str, bare: str = "numpy") -> None:
        self.module, self.bare = module, bare
        self.took, self.bare_ms, self.loaded = Slices(), [import_ms(bare)[0]], import_ms(module)[1]

    def slice(self, seconds: float) -> None:
        start = time.perf_counter()
        took: list[float] = []
        while not took or time.perf_counter() - start < seconds:
            took.append(import_ms(self.module)[0] * 1e6)
            self.bare_ms.append(import_ms(self.bare)[0])
        self.took.add(np.asarray(took), time.perf_counter() - start)

    def result(self) -> dict[str, Any]:
        calls: npt.NDArray[np.float64] = np.concatenate(self.took.calls_ns) / 1e6
        return {
            "unit": "ms",
            "median": round(float(np.median(calls)), 2),
            "p99": round(float(np.percentile(calls, 99)), 2),
            "n": len(calls),
            "rounds": [round(float(np.median(c)) / 1e6, 2) for c in self.took.calls_ns],
            "heavy_modules": self.loaded,
            "ceiling": {"what": f"import {self.bare}", "median": round(float(np.median(self.bare_ms)), 2)},
        }

    def close(self) -> None:
        """Nothing is held."""


def import_ms(module: str) -> tuple[float, list[str]]:
    """Milliseconds of the import statement in a fresh interpreter, and the heavy modules loaded afterwards."""
    code = (
        f"import sys, time, json; t = time.perf_counter(); import {module}; t = time.perf_counter() - t\n"
        f"print(json.dumps([t * 1e3, [m for m in {HEAVY!r} if m in sys.modules]]))"
    )
    # As after an installation, which compiles: without its bytecode a module is compiled anew at every import.
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment)
    took, loaded = json.loads(done.stdout)
    return float(took), list(loaded)
