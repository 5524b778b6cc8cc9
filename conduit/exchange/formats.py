"""Which formats there are, how a path tells its format, and what a format has to do.

A format is a module with a `Sink`, which is given a table's rows piece by piece, and a `Source`, which gives them. Only
those of the chosen format are imported, for some need packages of their own.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from conduit_store.errors import ConfigError, MissingExtra

if TYPE_CHECKING:
    import pyarrow as pa

    from conduit.exchange.frame import Frame

__all__ = ["FORMATS", "Sink", "Source", "format_of_path", "load"]


class Format(NamedTuple):
    """`suffixes` of its files; `module` below this package; `extra`: what brings the packages that it needs."""

    module: str
    suffixes: tuple[str, ...]
    extra: str | None
    about: str


FORMATS = {
    "parquet": Format("parquet", (".parquet", ".pq"), None, "Parquet: a file, or a folder of files"),
    "arrow": Format("ipc", (".arrow", ".feather", ".ipc"), None, "Arrow IPC file (Feather v2)"),
    "arrow-stream": Format("ipc_stream", (".arrows",), None, "Arrow IPC stream"),
    "numpy": Format("npz", (".npz",), None, "NumPy arrays in one .npz file"),
    "minari": Format("minari_dataset", (), "minari", "Minari dataset, a folder"),
    "rllib": Format("rllib_episodes", (), "rllib", "RLlib offline data: a folder of episodes in Parquet"),
    "tensordict": Format("tensordict_folder", (), "tensordict", "TensorDict in memory-mapped files, as TorchRL has it"),
}


class Sink(Protocol):
    """Writes one export. Made with (path aside, frame, rows expected, compression)."""

    def write(self, piece: pa.Table) -> None:
        """Take the next rows."""

    def finish(self) -> int:
        """Write what is left: then the file or folder is whole. Return how many rows it has."""

    def abandon(self) -> None:
        """Let go of files, whatever is in them."""


class Source(Protocol):
    """Reads one import. Made with (path). `schema` of the pieces, how many `rows`, how many ended `episodes` if known."""

    schema: pa.Schema
    rows: int | None
    episodes: int | None

    def pieces(self, columns: list[str], rows: int) -> Iterator[pa.Table]:
        """Iterate over these columns of all rows, about so many rows at a time."""

    def close(self) -> None:
        """Let go of files."""


def format_of_path(path: Path, given: str | None) -> str:
    """Return the name of the format of `path`: the given one, else by its suffix, else by what is in the folder.

    Raises:
        ConfigError: no format of that name, or nothing that tells it.
    """
    if given is not None:
        if given not in FORMATS:
            raise ConfigError(f"format {given!r} is none of {', '.join(FORMATS)}")
        return given
    for name, known in FORMATS.items():
        if path.suffix.lower() in known.suffixes:
            return name
    if path.is_dir():
        if (path / "data" / "metadata.json").exists() or (path / "metadata.json").exists():
            return "minari"
        if (path / "meta.json").exists():
            return "tensordict"
        if next(path.rglob("*.parquet"), None) is not None:
            return "parquet"
    suffixes = ", ".join(suffix for known in FORMATS.values() for suffix in known.suffixes)
    raise ConfigError(f"{path} does not tell its format: end it with one of {suffixes}, or give format=...")


def load(name: str) -> Any:
    """Import the module of a format.

    Raises:
        MissingExtra: a package that it needs is not installed.
    """
    known = FORMATS[name]
    try:
        return importlib.import_module(f"conduit.exchange.{known.module}")
    except MissingExtra:
        raise
    except ImportError as error:
        raise MissingExtra(
            f"format {name!r} needs a package that is not installed ({error}). Run `pip install "
            f"'conduit-edp[{known.extra}]'`"
        ) from error
