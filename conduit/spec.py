"""What a table was created with: written once into the store as JSON, read by every process that opens it."""

from __future__ import annotations

import json
import re
from dataclasses import asdict, dataclass
from typing import Any

from conduit import limiters, limiting, samplers, windows
from conduit.values import real_number, whole_number
from conduit_store import layout
from conduit_store.errors import ConfigError, LayoutMismatch
from conduit_store.native import native
from conduit_store.schema import Schema

__all__ = ["TableSpec"]

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,62}")
_SAMPLERS: dict[str, type[Any]] = {"Uniform": samplers.Uniform, "Prioritized": samplers.Prioritized}
_WINDOWS: dict[str, type[Any]] = {
    "Row": windows.Row,
    "Transition": windows.Transition,
    "NStep": windows.NStep,
}
# Arguments of Writer.append, and what a batch carries beside its columns.
_RESERVED = frozenset({"priority", "priorities", "final_obs", "keys", "probabilities", "weights"})
_WINDOW_COLUMNS = frozenset({"discount", "n_step"})
_LIMITERS: dict[str, type[Any]] = {
    "MinSize": limiters.MinSize,
    "SampleToInsertRatio": limiters.SampleToInsertRatio,
    "QueueCapacity": limiters.QueueCapacity,
}


@dataclass(frozen=True, slots=True)
class TableSpec:
    """The settings of a table; checked against each other when made.

    Raises:
        ConfigError: a name that is not allowed, settings that contradict each other or could never work.
    """

    name: str
    schema: Schema
    max_size: int
    sampler: samplers.Sampler
    window: windows.Window
    limiter: limiters.Limiter
    max_writers: int
    mean_episode_length: float
    seed: int
    max_times_sampled: int | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or _NAME.fullmatch(self.name) is None:
            raise ConfigError(
                f"table name {self.name!r} is not allowed: 1 to 63 letters, digits and _ . -, "
                "beginning with a letter, a digit or _"
            )
        for field, value, kinds in (
            ("schema", self.schema, Schema),
            ("sampler", self.sampler, samplers.Sampler),
            ("window", self.window, windows.Window),
            ("limiter", self.limiter, limiters.Limiter),
        ):
            if not isinstance(value, kinds):
                raise ConfigError(f"{field} is {value!r}: give an instance of {_alternatives(kinds)}")
        for number, low, high in (("max_size", 1, 1 << 28), ("max_writers", 1, 65_536), ("seed", 0, 2**64 - 1)):
            object.__setattr__(self, number, whole_number(number, getattr(self, number), low, high))
        length = real_number("mean_episode_length", self.mean_episode_length, 1.0, 1e12)
        object.__setattr__(self, "mean_episode_length", length)
        taken = [n for n in self.schema.names if n in _RESERVED or (self.episodic and n in _WINDOW_COLUMNS)]
        if taken:
            raise ConfigError(f"column {', '.join(taken)} has a name that writers or batches use themselves: rename it")
        times = limiting.check(self.limiter, self.max_size, self.max_times_sampled, self.name)
        object.__setattr__(self, "max_times_sampled", times)
        self._check_window()

    def _check_window(self) -> None:
        if not self.episodic:
            return
        if not self.schema.is_episodic:
            raise ConfigError(
                f"window {self.window} follows episodes, which needs the columns obs, reward, terminated and "
                f"truncated and no next_obs; the schema has {', '.join(self.schema.names)}. "
                "Use windows.Row() for rows as stored"
            )
        reward = self.schema.column("reward")
        if self.steps > 1 and (reward.shape != () or str(reward.dtype) not in ("float32", "float64")):
            raise ConfigError(
                f"window {self.window} sums rewards, which must be float32 or float64 numbers; "
                f"column 'reward' is {reward.dtype} of shape {reward.shape}"
            )

    @property
    def episodic(self) -> bool:
        """Whether rows are chained into episodes."""
        return not isinstance(self.window, windows.Row)

    @property
    def steps(self) -> int:
        """Steps that a window needs after its first row's observation; 0 without episodes."""
        match self.window:
            case windows.NStep(n=n):
                return n
            case windows.Transition():
                return 1
            case _:
                return 0

    @property
    def gamma(self) -> float:
        """Discount of one step; 1 without episodes."""
        return 1.0 if isinstance(self.window, windows.Row) else self.window.gamma

    def block_layout(self) -> layout.BlockLayout:
        """Return how the rows are cut into blocks.

        Raises:
            ConfigError: more rows than a table can number.
        """
        plan = layout.plan(
            self.schema,
            self.max_size,
            max_writers=self.max_writers,
            mean_episode_length=self.mean_episode_length if self.episodic else None,
            holes=self.max_times_sampled is not None,
        )
        if plan.rows * plan.blocks >= native.MAX_TABLE_SLOTS:
            raise ConfigError(
                f"table {self.name!r} of {self.max_size:,} rows needs {plan.rows * plan.blocks:,} row slots, the "
                f"limit is {native.MAX_TABLE_SLOTS - 1:,}. Lower max_size or use several tables"
            )
        return plan

    def to_native(self) -> native.TableSpec:
        """Return the record that the core creates a table from."""
        plan = self.block_layout()
        prioritized = isinstance(self.sampler, samplers.Prioritized)
        chances = self.sampler if isinstance(self.sampler, samplers.Prioritized) else samplers.Prioritized(0.0, 0.0)
        settings = native.Settings()
        settings.alpha, settings.beta, settings.eps = chances.alpha, chances.beta, chances.eps
        limiting.put(self.limiter, self.max_times_sampled, settings)
        return native.TableSpec(
            name=self.name,
            spec=self.to_json().encode(),
            offsets=list(plan.offsets),
            row_bytes=list(plan.row_bytes),
            max_size=self.max_size,
            rows_per_block=plan.rows,
            n_blocks=plan.blocks,
            block_bytes=plan.block_bytes,
            steps_after=self.steps,
            prioritized=prioritized,
            settings=settings,
            limiter=limiting.kind(self.limiter),
            limits_inserts=limiting.limits_inserts(self.limiter),
            counts_uses=self.max_times_sampled is not None,
            seed=self.seed,
        )

    def to_json(self) -> str:
        """Return all settings as JSON."""
        fields: dict[str, Any] = {
            "name": self.name,
            "schema": json.loads(self.schema.to_json()),
            "max_size": self.max_size,
            "max_writers": self.max_writers,
            "mean_episode_length": self.mean_episode_length,
            "seed": self.seed,
            "max_times_sampled": self.max_times_sampled,
        }
        for field, record in (("sampler", self.sampler), ("window", self.window), ("limiter", self.limiter)):
            fields[field] = {"kind": type(record).__name__, **asdict(record)}
        return json.dumps(fields)

    @classmethod
    def from_json(cls, text: str) -> TableSpec:
        """Return the settings that `to_json` wrote.

        Raises:
            LayoutMismatch: written by a build with other settings.
        """
        try:
            fields = json.loads(text)
            schema = Schema.from_json(json.dumps(fields.pop("schema")))
            records = {
                field: _record(kinds, fields.pop(field))
                for field, kinds in (("sampler", _SAMPLERS), ("window", _WINDOWS), ("limiter", _LIMITERS))
            }
            return cls(schema=schema, **records, **fields)
        except (KeyError, TypeError, ValueError) as error:
            raise LayoutMismatch(
                f"the settings of a table cannot be read by this build ({error}). Use the same conduit-edp everywhere"
            ) from error


def _record(kinds: dict[str, type[Any]], fields: dict[str, Any]) -> Any:
    return kinds[fields.pop("kind")](**fields)


def _alternatives(kinds: Any) -> str:
    members = getattr(kinds, "__args__", (kinds,))
    return " or ".join(f"{member.__module__.removeprefix('conduit.')}.{member.__qualname__}" for member in members)
