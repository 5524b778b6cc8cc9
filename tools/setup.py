"""Make `.venv`, install the pinned packages, build the native core. Called by make; standard library only.

Three stages, each remembered by a stamp in `.venv/.conduit` that holds a digest of what the stage was made
from: the environment, the packages (pyproject.toml, constraints.txt), the native core (store/native,
CMakeLists.txt, pyproject.toml). A stage whose stamp is current is skipped, so that a second run takes a
fraction of a second. A stamp is written last, so that the next run repairs one stopped at any moment.
One run at a time: others wait.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import signal
import subprocess
import sys
import sysconfig
import tempfile
import time
from pathlib import Path

from pip_progress import Interrupted, PipFailed, run_pip

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
PYTHON = VENV / "bin" / "python"
STAMPS = VENV / ".conduit"
LOG = VENV / "setup.log"
OLDEST = (3, 11)
EXTRAS = "dev"  # includes torch, ray and demo; CUDA and UCX packages are installed by who needs them

PROBE = """#include <Python.h>
#include <compare>
#include <concepts>
consteval int twice(std::integral auto value) { return 2 * value; }
static_assert(twice(2) <=> 4 == 0);
"""


class SetupError(Exception):
    """What is missing and the command that brings it; shown without a traceback."""


def say(text: str) -> None:
    print(f"[setup] {text}", flush=True)


def digest(*paths: Path) -> str:
    """SHA-256 over names and contents of files, of those below folders, and the repository's own path."""
    total = hashlib.sha256(f"{sys.version}{ROOT}".encode())
    for path in paths:
        for file in sorted(path.rglob("*")) if path.is_dir() else [path]:
            if file.is_file():
                total.update(f"{file.relative_to(ROOT)}\0".encode())
                total.update(hashlib.sha256(file.read_bytes()).digest())
    return total.hexdigest()


def is_current(stage: str, wanted: str) -> bool:
    try:
        return (STAMPS / stage).read_text() == wanted
    except OSError:
        return False


def set_stamp(stage: str, wanted: str | None) -> None:
    """Replaces the stamp in one step; `None` takes it away."""
    path = STAMPS / stage
    if wanted is None:
        path.unlink(missing_ok=True)
        return
    STAMPS.mkdir(exist_ok=True)
    fresh = path.with_suffix(".new")
    fresh.write_text(wanted)
    fresh.replace(path)


def use_recent_python() -> None:
    """Starts again under a Python of at least OLDEST, if this one is older and PATH has one."""
    if sys.version_info >= OLDEST:
        return
    for minor in range(OLDEST[1], OLDEST[1] + 8):
        name = f"python3.{minor}"
        probe = [name, "-c", "import sys; sys.exit(sys.version_info < (3, 11))"]
        if shutil.which(name) and subprocess.run(probe, capture_output=True, check=False).returncode == 0:
            os.execvp(name, [name, *sys.argv])
    raise SetupError(
        f"Python {sys.version.split()[0]} at {sys.executable} is too old: Conduit needs 3.11 or newer, "
        "and no newer one is on PATH. Install one, then name it: make setup PYTHON=/path/to/python3.11"
    )


def check_toolchain() -> None:
    """Compiles six lines of C++20 against Python.h; says which of compiler, headers and C++20 is missing."""
    include = Path(sysconfig.get_paths()["include"])
    version = f"python{sys.version_info[0]}.{sys.version_info[1]}"
    if not (include / "Python.h").exists():
        raise SetupError(
            f"the C headers of {sys.executable} are not installed: {include}/Python.h does not exist. "
            f"Install them (Debian, Ubuntu: apt install {version}-dev; Fedora: dnf install {version}-devel)"
        )
    named = os.environ.get("CXX", "")
    compiler = next(filter(None, map(shutil.which, [named] if named else ["c++", "g++", "clang++"])), None)
    if compiler is None:
        what = f"the C++ compiler CXX={named}" if named else "no C++ compiler (c++, g++, clang++)"
        raise SetupError(
            f"{what} {'is not' if named else 'is'} on PATH. Install one with C++20, GCC 11 or Clang 15 on "
            "(Debian, Ubuntu: apt install g++; Fedora: dnf install gcc-c++)"
        )
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder, "probe.cpp")
        source.write_text(PROBE)
        command = [compiler, "-std=c++20", "-fsyntax-only", f"-I{include}", str(source)]
        result = subprocess.run(command, capture_output=True, text=True, check=False)
    if result.returncode != 0:
        raise SetupError(
            f"{compiler} cannot compile C++20 against Python.h; Conduit needs GCC 11, Clang 15 or newer "
            f"(name one with CXX=...). It said:\n{result.stderr.strip()}"
        )


def make_environment() -> None:
    """`.venv` with a pip that runs; one left half made, moved, or of another Python is made anew."""
    wanted = f"{sys.version}\n{sys.base_prefix}\n{VENV}"
    answers = [str(PYTHON), "-m", "pip", "--version"]
    current = is_current("environment", wanted) and PYTHON.exists()
    if current and subprocess.run(answers, capture_output=True, check=False).returncode == 0:
        return
    say(f"making .venv with Python {sys.version.split()[0]}")
    command = [sys.executable, "-m", "venv", "--clear", str(VENV)]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    if result.returncode != 0:
        version = f"python{sys.version_info[0]}.{sys.version_info[1]}"
        raise SetupError(
            f"python -m venv failed (Debian, Ubuntu: apt install {version}-venv). It said:\n"
            f"{(result.stdout + result.stderr).strip()}"
        )
    set_stamp("environment", wanted)


def requirements(extra: str) -> list[str]:
    """The package's dependencies and those of one extra, with the package's own extras that it names."""
    import tomllib  # since Python 3.11, and this file must get as far as its message on an older one

    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    found: list[str] = list(project["dependencies"])
    waiting, seen = [extra], set()
    while waiting:
        name = waiting.pop()
        if name in seen:
            continue
        seen.add(name)
        for item in project["optional-dependencies"][name]:
            if item.startswith(f"{project['name']}["):
                waiting += [part.strip() for part in item.partition("[")[2].rstrip("]").split(",")]
            else:
                found.append(item)
    return found


def pins(section: str) -> list[str]:
    """The pins of constraints.txt below the comment that begins with `section`, up to the next empty line."""
    text = (ROOT / "constraints.txt").read_text().partition(f"\n# {section}")[2].partition("\n\n")[0]
    return [line for line in text.splitlines()[1:] if "==" in line]


def remove_half_installed() -> None:
    """Forgets packages of which a stopped pip wrote only a part, so that pip installs them again."""
    site = VENV / "lib" / f"python{sys.version_info[0]}.{sys.version_info[1]}" / "site-packages"
    for info in site.glob("*.dist-info"):
        record = info / "RECORD"
        lines = record.read_text().splitlines() if record.exists() else []
        files = [line.rsplit(",", 2)[0].strip('"') for line in lines]
        if not files or not all((site / name).exists() for name in files if not name.endswith(".pyc")):
            shutil.rmtree(info)
    for rest in site.glob("~*"):
        shutil.rmtree(rest, ignore_errors=True)


def install_packages() -> None:
    """Everything pinned except Conduit itself."""
    wanted = digest(ROOT / "pyproject.toml", ROOT / "constraints.txt")
    if is_current("packages", wanted) and PYTHON.exists():
        return
    make_environment()
    interrupted = (STAMPS / "installing").exists()
    set_stamp("packages", None)
    set_stamp("native", None)
    set_stamp("installing", "a run of pip that did not end leaves this file")
    if interrupted:
        say("the last set-up was stopped: looking for packages that are only half there")
        remove_half_installed()
    pinned = pins("make setup")
    pip = next(pin for pin in pinned if pin.startswith("pip=="))
    probe = [str(PYTHON), "-c", f"import pip; assert pip.__version__ == {pip[5:]!r}"]
    if subprocess.run(probe, capture_output=True, check=False).returncode != 0:
        run_pip("pip", [str(PYTHON), "-m", "pip", "install", pip], LOG, total=1)
    command = [str(PYTHON), "-m", "pip", "install", "--progress-bar=raw", "-c", str(ROOT / "constraints.txt")]
    run_pip("packages", [*command, *requirements(EXTRAS)], LOG, total=len(pinned) - 1)
    set_stamp("installing", None)
    set_stamp("packages", wanted)


def build_core() -> None:
    """Compiles store/native and installs Conduit in editable form; objects are kept in build/."""
    sources = [ROOT / name for name in ("store/native", "CMakeLists.txt", "pyproject.toml")]
    wanted = digest(*sources)
    if is_current("native", wanted):
        return
    check_toolchain()
    set_stamp("native", None)
    command = [str(PYTHON), "-m", "pip", "install", "--verbose", "--no-build-isolation", "--no-deps"]
    settings = ["--config-settings=cmake.define.CONDUIT_TEST_BUILD=ON"]
    run_pip("native core", [*command, *settings, "--editable", str(ROOT)], LOG, total=0)
    # pip compiles what it installs, not what it points to; and where PYTHONDONTWRITEBYTECODE is set, nobody does
    packages = [str(ROOT / name) for name in ("conduit", "store/conduit_store", "transport/conduit_transport")]
    subprocess.run([str(PYTHON), "-m", "compileall", "-q", *packages], check=False)
    set_stamp("native", wanted)


def main() -> int:
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.default_int_handler)
    started = time.monotonic()
    try:
        if sys.platform != "linux":
            raise SetupError(
                f"Conduit needs Linux 5.14 or newer (memfd, OFD locks, futexes); this is {sys.platform}"
            )
        use_recent_python()
        with open(__file__) as lock:
            os.set_inheritable(lock.fileno(), True)  # a pip that outlives a killed set-up keeps the lock
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                say("another set-up of this folder is running: waiting for it")
                fcntl.flock(lock, fcntl.LOCK_EX)
            if not (STAMPS / "native").exists():
                check_toolchain()  # a fresh machine hears of a missing compiler before the downloads
            install_packages()
            build_core()
    except (KeyboardInterrupt, Interrupted):
        print("\n[setup] stopped; the next make goes on from here", flush=True)
        return 130
    except (SetupError, PipFailed) as error:
        print(f"[setup] error: {error}", file=sys.stderr, flush=True)
        return 1
    took = time.monotonic() - started
    if took > 2:
        say(f"ready in {took:.0f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
