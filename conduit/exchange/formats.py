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


__all__ = ["FORMATS", "Sink", "Source", "format_of_path", "load"]


class Format(NamedTuple):
    """A module below this package, the suffixes of its files, which compressions it has, the extra that brings the
    packages it needs, and where it is only read, what is written instead."""

    module: str
    suffixes: tuple[str, ...]
    compressions: tuple[str, ...]
    extra: str | None = None
    instead: str | None = None


FORMATS = {
    "parquet": Format("parquet", (".parquet", ".pq"), ("none", "zstd", "snappy", "lz4", "gzip", "brotli")),
    "arrow": Format("ipc", (".arrow", ".feather", ".ipc"), ("none", "lz4", "zstd")),
    "arrow-stream": Format("ipc_stream", (".arrows",), ("none", "lz4", "zstd")),
    "numpy": Format("npz", (".npz",), ("none", "deflate")),
    "minari": Format("minari_dataset", (), (), "minari"),
    "rllib": Format("rllib_episodes", (), (), "rllib"),
    "rllib-json": Format("rllib_json", (".json",), (), instead="rllib"),
    "tensordict": Format("tensordicts", (), (), "tensordict"),
}


class Sink(Protocol):
    """Writes one export. Made with (path aside, frame, rows expected, compression)."""

    def write(self, piece: pa.Table) -> None:
        """Take the next rows."""

    def finish(self) -> int:
        """Write what is left: then the file or folder is whole. Return how many rows it has."""
        ...

    def abandon(self) -> None:
        """Let go of files, whatever is in them."""


class Source(Protocol):
    """Reads one import. Made with (path). `schema` of the pieces; how many `rows`, and ended `episodes`, if known."""

    schema: pa.Schema
    rows: int | None
    episodes: int | None

    def pieces(self, columns: list[str], rows: int) -> Iterator[pa.Table]:
        """Iterate over these columns of all rows, about so many rows at a time."""
        ...

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
        if (file := next(path.rglob("*.parquet"), None)) is not None:
            return "rllib" if _holds_episodes(file) else "parquet"
        if next(path.rglob("*.json"), None) is not None:
            return "rllib-json"
    suffixes = ", ".join(suffix for known in FORMATS.values() for suffix in known.suffixes)
    raise ConfigError(f"{path} does not tell its format: end it with one of {suffixes}, or give format=...")


def _holds_episodes(file: Path) -> bool:
    """Whether a Parquet file is of RLlib: one column of episodes."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        schema = pq.read_schema(file)
    except (OSError, pa.ArrowException):
        return False
    return bool(schema.names == ["item"] and pa.types.is_binary(schema.field(0).type))


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
