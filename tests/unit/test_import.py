"""`import conduit` loads nothing heavy, and offers just what it says."""

from __future__ import annotations

import subprocess
import sys
import types

import pytest

import conduit
import conduit_store
from conduit_store import errors

HEAVY = (
    "torch", "torchrl", "tensordict", "ray", "cupy", "pyarrow", "gymnasium", "rich", "matplotlib", "pandas", "asyncio",
    "multiprocessing",
)  # fmt: skip
PUBLIC = {
    "Batch", "BlockView", "Column", "Schema", "Store", "StoreMetrics", "Table", "TableMetrics", "UpdateResult",
    "DeviceBatch", "DeviceQueueBatch", "Disk", "DiskMetrics", "Loader", "LoaderMetrics", "VectorWriter",
    "Writer", "agents", "limiters", "removers", "samplers", "schedules", "windows", "ConsumerMetrics", "Queue",
    "QueueBatch", "QueueLoader", "QueueMetrics", "QueueWriter", "Ragged", "ReaderMetrics", "WriterMetrics",
    "balance", *errors.__all__,
}  # fmt: skip
SETTINGS = {"limiters": {"Limiter", "MinSize", "QueueCapacity", "SampleToInsertRatio"},
            "removers": {"Fifo", "Lifo", "LowestPriority", "Remover"},
            "samplers": {"Fifo", "Lifo", "Prioritized", "Sampler", "Uniform", "WithoutReplacement"},
            "schedules": {"Exponential", "Linear", "Schedule"},
            "windows": {"Episode", "FrameStack", "Hindsight", "NStep", "Row", "Sequence", "Transition",
                        "Window"}}  # fmt: skip


def fresh(code: str) -> str:
    """What a new interpreter prints."""
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True, timeout=60)
    return done.stdout


def test_a_fresh_interpreter_loads_nothing_heavy() -> None:
    loaded = set(fresh("import sys, conduit; print(*sys.modules)").split())
    assert "conduit_store.native" in loaded
    assert not loaded.intersection(HEAVY)


WHOLE_DAY = """
import os, sys, tempfile
import numpy as np
with tempfile.TemporaryDirectory(dir="/tmp") as folder:
    os.environ["CONDUIT_RUNTIME_DIR"] = folder
    import conduit
    with conduit.Store.create("a", "16MiB") as store:
        schema = conduit.Schema.from_example({"x": 1})
        table = store.create_table("t", schema, 8, sampler=conduit.samplers.Prioritized())
        table.extend({"x": np.arange(5)}, priorities=np.ones(5))
        batch = table.sample(4)
        table.update_priorities(batch.keys, batch["x"] + 1.0)
        store.metrics()
print(*sys.modules)
"""


def test_work_with_numpy_alone_loads_nothing_heavy() -> None:
    assert not set(fresh(WHOLE_DAY).split()).intersection(HEAVY)


def test_the_public_names() -> None:
    assert set(conduit.__all__) == PUBLIC
    assert len(conduit.__all__) == len(PUBLIC)
    assert all(hasattr(conduit, name) for name in PUBLIC)
    others = {
        name for name, value in vars(conduit).items()
        if not name.startswith("_") and name not in PUBLIC and not isinstance(value, types.ModuleType)
    }  # fmt: skip
    assert not others, "reachable but not in __all__"


@pytest.mark.parametrize("module", SETTINGS)
def test_the_public_names_of_settings(module: str) -> None:
    assert set(getattr(conduit, module).__all__) == SETTINGS[module]


def test_errors_are_the_same_classes_everywhere() -> None:
    for name in errors.__all__:
        assert getattr(conduit, name) is getattr(errors, name) is getattr(conduit_store, name)
