"""What a reader of a file raises, as one kind of error that names the file."""

from __future__ import annotations

import contextlib
import struct
import tokenize
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa

from conduit_store.errors import ConduitError, ExchangeError, SourceNotFound

__all__ = ["readable", "reading"]


@contextlib.contextmanager
def reading(path: Path, kind: str) -> Iterator[None]:
    """Turn what goes wrong in here into an ExchangeError about `path`, which is to be of `kind`.

    Raises:
        SourceNotFound: it is not there. ExchangeError: it cannot be read.
    """
    try:
        yield
    except ConduitError:
        raise
    except FileNotFoundError as error:
        raise SourceNotFound(f"{path} is not there: {error.strerror or error}") from error
    except _DAMAGE as error:
        text = str(error).strip().partition("\n")[0]
        why = "It is damaged, cut off, or of another format"
        if isinstance(error, MemoryError):  # which damage asks for as well
            why = "There is not enough memory, or it is damaged"
        raise ExchangeError(f"{path} cannot be read as {kind}: {text or type(error).__name__}. {why}") from error


def readable(schema: pa.Schema) -> pa.Schema:
    """Return the schema, once its names have been found to be text: Arrow does not look. For use within `reading`."""
    for name in schema.names:  # raises
        name.encode()
    return schema


_DAMAGE = (
    pa.ArrowException, OSError, EOFError, ValueError, TypeError, KeyError, IndexError, OverflowError, MemoryError,
    RuntimeError, UnicodeError, AssertionError, AttributeError, SyntaxError, tokenize.TokenError, struct.error, zipfile.BadZipFile,
    zlib.error,
)  # fmt: skip
