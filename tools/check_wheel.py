"""Installs the newest wheel of dist/ into a clean environment and imports it there, outside the repository.

Checks that the compiled core comes with it and the failpoint module does not, that `import conduit` loads no
package that it must not, and that the console script answers. Standard library only.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import venv
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

PROBE = """
import sys
import conduit, conduit_store._native
loaded = {"torch", "ray", "cupy", "pyarrow", "gymnasium"} & set(sys.modules)
assert not loaded, f"import conduit also loads {sorted(loaded)}"
assert "site-packages" in conduit.__file__, conduit.__file__
with conduit.Store.create("wheel-check", host_memory="64MiB") as store:
    print("imported", conduit.__file__, "and created", store.name)
"""


def main() -> int:
    wheels = sorted((ROOT / "dist").glob("conduit_edp-*.whl"), key=lambda path: path.stat().st_mtime)
    if not wheels:
        print("no wheel in dist/: run `make wheel` first", file=sys.stderr)
        return 1
    names = zipfile.ZipFile(wheels[-1]).namelist()
    native = [name for name in names if name.startswith("conduit_store/_native") and name.endswith(".so")]
    if len(native) != 1 or "_native_test" in native[0]:
        print(f"{wheels[-1].name} must hold one compiled module, _native; it holds {native}", file=sys.stderr)
        return 1
    with tempfile.TemporaryDirectory() as folder:
        venv.create(folder, with_pip=True)
        python, script = (str(Path(folder, "bin", name)) for name in ("python", "conduit"))
        constraints = ["-c", str(ROOT / "constraints.txt")]
        subprocess.run([python, "-m", "pip", "install", "-q", *constraints, str(wheels[-1])], check=True)
        subprocess.run([python, "-c", PROBE], check=True, cwd=folder)
        subprocess.run([script, "--help"], check=True, cwd=folder, stdout=subprocess.DEVNULL)
    return 0


if __name__ == "__main__":
    sys.exit(main())
