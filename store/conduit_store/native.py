"""The compiled core: `native` is `_native`, or `_native_test` (with failpoints) where CONDUIT_NATIVE=test."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import conduit_store._native as native  # mypy does not find it by `from . import`
elif os.environ.get("CONDUIT_NATIVE") == "test":
    from . import _native_test as native
else:
    from . import _native as native

__all__ = ["native"]
