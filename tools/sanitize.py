"""Builds the native core with its harness under sanitizers and runs it; arguments go to the harness.

Two builds: build/sanitize-thread (ThreadSanitizer), build/sanitize-address (AddressSanitizer and UBSan).
Both are kept: a second run compiles only what changed. Ends with 1 at the first report.
"""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
OPTIONS = {
    "TSAN_OPTIONS": "halt_on_error=1:second_deadlock_stack=1",
    "ASAN_OPTIONS": "detect_leaks=1:strict_string_checks=1",
    "UBSAN_OPTIONS": "print_stacktrace=1",
}


def build(kind: str) -> Path:
    """The harness under the sanitizers of `kind`, compiled if anything changed."""
    folder = ROOT / "build" / f"sanitize-{kind}"
    cmake = str(Path(sys.executable).parent / "cmake")
    configure = [cmake, "-S", str(ROOT), "-B", str(folder), "-G", "Ninja", "--log-level=WARNING"]
    make_program = f"-DCMAKE_MAKE_PROGRAM={Path(sys.executable).parent / 'ninja'}"
    choice = [f"-DCONDUIT_SANITIZE={kind}", "-DCMAKE_BUILD_TYPE=Debug"]
    subprocess.run([*configure, make_program, *choice], check=True, stdout=subprocess.DEVNULL)
    subprocess.run([cmake, "--build", str(folder)], check=True)
    return folder / "conduit_harness"


def fixed_addresses() -> list[str]:
    """The command that switches address randomisation off: some kernels' is too wide for ThreadSanitizer."""
    prefix = ["setarch", platform.machine(), "-R"]
    if shutil.which("setarch") is None:
        return []
    works = subprocess.run([*prefix, "true"], capture_output=True, check=False).returncode == 0
    return prefix if works else []


def main() -> int:
    for kind in ("thread", "address"):
        started = time.monotonic()
        try:
            harness = build(kind)
            print(f"[sanitize] {kind}: running", flush=True)
            command = [*(fixed_addresses() if kind == "thread" else []), str(harness), *sys.argv[1:]]
            subprocess.run(command, check=True, env=dict(os.environ, **OPTIONS))
        except subprocess.CalledProcessError as error:
            print(f"[sanitize] {kind}: failed with {error.returncode}", file=sys.stderr)
            return 1
        except KeyboardInterrupt:
            print(f"\n[sanitize] {kind}: stopped")
            return 130
        print(f"[sanitize] {kind}: clean, {time.monotonic() - started:.0f} s", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
