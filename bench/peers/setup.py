"""The peers' environments: .venv-peers/NAME with pinned versions, built once, rebuilt when a pin changes."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

from bench.driver import IMPORTS

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
PEERS = ("cpprb", "torchrl", "tianshou", "sb3", "flashbax", "reverb", "transferqueue")  # each an environment
_SHARED = {"cpprb-mp": "cpprb", "torchrl-memmap": "torchrl"}  # drivers in the environment of another


def environments() -> Path:
    """Where the environments are: BENCH_PEERS_DIR, or .venv-peers beside the package."""
    return Path(os.environ.get("BENCH_PEERS_DIR", ROOT / ".venv-peers"))


def environment(driver: str) -> str | None:
    """The environment that a driver runs in; None: the product's own."""
    name = _SHARED.get(driver, driver)
    return name if name in PEERS else None


def interpreter(driver: str) -> Path:
    name = environment(driver)
    return Path(sys.executable) if name is None else environments() / name / "bin" / "python"


def is_ready(peer: str) -> bool:
    """Whether the environment exists and has today's pins; where it is the product's, whether the package is there."""
    if peer not in PEERS:
        return importlib.util.find_spec(IMPORTS[peer].partition(".")[0]) is not None
    stamp = environments() / peer / ".pins"
    return interpreter(peer).exists() and stamp.exists() and stamp.read_text(encoding="ascii") == pins_hash(peer)


def pins_hash(peer: str) -> str:
    pins = (HERE / f"requirements-{peer}.txt").read_bytes()
    return hashlib.sha256(pins + sys.version.encode()).hexdigest()


def failure(driver: str) -> str | None:
    """Why the environment could not be built, when that was tried last."""
    reason = environments() / f"{environment(driver)}.failed"
    return reason.read_text(encoding="utf-8") if reason.exists() else None


def set_up(peers: tuple[str, ...] = PEERS) -> list[str]:
    """Build what is missing, saying what is done. Interrupted, a half-built environment is removed.

    A peer that cannot be installed, or imported afterwards, is said with the reason, which is kept for the report; the
    others go on. Returns those that failed.
    """
    failed: list[str] = []
    for i, peer in enumerate(peers, 1):
        if is_ready(peer):
            print(f"[{i}/{len(peers)}] {peer}: ready in {environments() / peer}")
            continue
        start = time.monotonic()
        print(f"[{i}/{len(peers)}] {peer}: installing {pins(peer)} into {environments() / peer}", flush=True)
        reason = environments() / f"{peer}.failed"
        try:
            build(peer)
        except RuntimeError as error:
            shutil.rmtree(environments() / peer, ignore_errors=True)
            reason.write_text(str(error).splitlines()[-1].strip(), encoding="utf-8")
            print(f"[{i}/{len(peers)}] not installed: {error}", flush=True)
            failed.append(peer)
            continue
        except BaseException:
            shutil.rmtree(environments() / peer, ignore_errors=True)
            raise
        reason.unlink(missing_ok=True)
        print(f"[{i}/{len(peers)}] {peer}: ready after {time.monotonic() - start:.0f} s", flush=True)
    return failed


def pins(peer: str) -> str:
    return ", ".join((HERE / f"requirements-{peer}.txt").read_text(encoding="ascii").split())


def build(peer: str) -> None:
    folder = environments() / peer
    shutil.rmtree(folder, ignore_errors=True)
    folder.parent.mkdir(parents=True, exist_ok=True)
    call([sys.executable, "-m", "venv", str(folder)], peer)
    requirements = str(HERE / f"requirements-{peer}.txt")
    pip = [str(interpreter(peer)), "-m", "pip", "install", "--disable-pip-version-check", "--progress-bar", "off"]
    call([*pip, "-r", requirements], peer)
    check = f"import importlib; from bench.driver import IMPORTS, load; load({peer!r})"
    check += f"; importlib.import_module(IMPORTS[{peer!r}])"
    call([str(interpreter(peer)), "-c", check], peer, cwd=ROOT)
    (folder / ".pins").write_text(pins_hash(peer), encoding="ascii")


def call(command: list[str], peer: str, cwd: Path | None = None) -> None:
    """Run, showing the line at work and the seconds; the whole output only on failure."""
    lines: list[str] = []
    start, terminal = time.monotonic(), sys.stdout.isatty()
    with subprocess.Popen(
        command, cwd=cwd, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace"
    ) as process:
        assert process.stdout is not None
        try:
            for line in process.stdout:
                lines.append(line.rstrip())
                if terminal:
                    print(f"\r  {time.monotonic() - start:4.0f} s  {lines[-1][:90]:<90}", end="", flush=True)
        except BaseException:
            process.terminate()
            raise
    if terminal:
        print("\r" + " " * 102 + "\r", end="")
    if process.returncode:
        tail = "\n".join(lines[-15:])
        raise RuntimeError(f"{peer}: exit {process.returncode} of {' '.join(command)}:\n{tail}")
