"""The type of any NumPy array. Spelt out, as `numpy.typing` alone costs 5 ms at import."""

from typing import Any

import numpy as np

__all__ = ["Array"]

Array = np.ndarray[Any, np.dtype[Any]]
