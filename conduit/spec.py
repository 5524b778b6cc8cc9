"""What a table was created with: written once into the store as JSON, read by every process that opens it."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from conduit import limiters, limiting, removers, samplers, views, windows
from conduit.disk import Disk, Messages
from conduit.queue_settings import POLICY_VERSION, QueueSettings
from conduit.values import check_name, real_number, whole_number
from conduit.views import View
from conduit_store import layout
from conduit_store.errors import ConfigError, LayoutMismatch
from conduit_store.native import native
from conduit_store.schema import Schema

__all__ = ["TableSpec"]

# Arguments of Writer.append, and what a batch carries beside its columns.
_RESERVED = frozenset({"priority", "priorities", "final_obs", "keys", "probabilities", "weights"})
_LIMITERS: dict[str, type[Any]] = {
    "MinSize": limiters.MinSize,
    "SampleToInsertRatio": limiters.SampleToInsertRatio,
    "QueueCapacity": limiters.QueueCapacity,
}
_REMOVERS: dict[str, type[Any]] = {kind.__name__: kind for kind in removers.Remover.__args__}
_CORE_REMOVERS: dict[type[Any], int] = {removers.Fifo: 0, removers.Lifo: 1, removers.LowestPriority: 2}


@dataclass(frozen=True, slots=True)
class TableSpec:
    """The settings of a table; checked against each other when made.

    `window` is one window or several by name, `sampler` one for all of them or one for each by the same names;
    `views` says the same in one form.

    Raises:
        ConfigError: a name that is not allowed, settings that contradict each other or could never work.
    """

    name: str
    schema: Schema
    max_size: int
    sampler: samplers.Sampler | Mapping[str, samplers.Sampler]
    window: windows.Window | Mapping[str, windows.Window]
    limiter: limiters.Limiter
    max_writers: int
    mean_episode_length: float
    seed: int
    max_times_sampled: int | None = None
    remover: removers.Remover = field(default_factory=removers.Fifo)
    queue: QueueSettings | None = None
    disk: Disk | None = None
    messages: Messages | None = field(default=None, repr=False, compare=False)  # where it has a disk; made if None
    views: tuple[View, ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        check_name("table", self.name)
        for what, kinds in (("schema", Schema), ("limiter", limiters.Limiter), ("remover", removers.Remover)):
            value = getattr(self, what)
            if not isinstance(value, kinds):
                raise ConfigError(f"{what} is {value!r}: give an instance of {views.alternatives(kinds)}")
        object.__setattr__(self, "views", self._ranked(views.named(self.window, self.sampler)))
        for what in ("window", "sampler"):
            given = getattr(self, what)
            if isinstance(given, Mapping):
                object.__setattr__(self, what, dict(given))
        for number, low, high in (("max_size", 1, 1 << 28), ("max_writers", 1, 65_536), ("seed", 0, 2**64 - 1)):
            object.__setattr__(self, number, whole_number(number, getattr(self, number), low, high))
        length = real_number("mean_episode_length", self.mean_episode_length, 1.0, 1e12)
        object.__setattr__(self, "mean_episode_length", length)
        added = frozenset[str]().union(*(view.added for view in self.views))
        taken = [name for name in self.schema.names if name in _RESERVED or name in added]
        if taken:
            raise ConfigError(f"column {', '.join(taken)} has a name that writers or batches use themselves: rename it")
        times = limiting.check(self.limiter, self.max_size, self.max_times_sampled, self.name)
        object.__setattr__(self, "max_times_sampled", times)
        self._check_lengths()
        self._check_mutable()
        self._check_disk()
        if wide := [column.name for column in self.schema if column.categorical and column.shape]:
            raise ConfigError(f"column {', '.join(wide)} has several categories a row: give each a column of its own")
        for view in self.views:
            self._check_window(view)
            if self.max_times_sampled is not None and getattr(view.sampler, "stratified", False):
                raise ConfigError(
                    f"sampler {view.sampler} draws from slices of equal mass, and with max_times_sampled rows leave in "
                    "the middle of a batch: use one or the other"
                )

    def _check_mutable(self) -> None:
        """Columns that may be rewritten, or null: not those that the table itself acts on."""
        fixed = ("terminated", "truncated") if self.schema.is_episodic else ()
        acted = {*fixed, POLICY_VERSION} if self.queue is not None else {*fixed}
        if wrong := [column.name for column in self.schema.nullable if column.name in acted]:
            raise ConfigError(
                f"column {', '.join(wrong)} is nullable: table {self.name!r} acts on its values, and a null is none. "
                "Take nullable away"
            )
        if wrong := [name for name in fixed if self.schema.column(name).mutable]:
            raise ConfigError(
                f"column {', '.join(wrong)} is mutable: table {self.name!r} acts on it when a row comes in, and could "
                "not undo that. Take mutable away"
            )

    def _check_disk(self) -> None:
        disk = self.disk
        if disk is None:
            return
        if not isinstance(disk, Disk):
            raise ConfigError(f"disk is {disk!r}: give conduit.Disk(folder, host_memory)")
        if self.slots:
            raise ConfigError(
                f"table {self.name!r} takes rows out one by one ({self.remover}), and rows go to disk by blocks: they "
                "stay in memory. Take disk away, or use removers.Fifo()"
            )
        changing = [column.name for column in self.schema if column.mutable]
        if disk.compression is not None and (changing or self.queue is not None):
            what = f"columns {', '.join(changing)} are mutable" if changing else f"{self.name!r} is a queue"
            raise ConfigError(
                f"{what}, and compression={disk.compression!r} is for rows that are drawn and do not change. Take "
                "compression away"
            )
        plan, least = self.block_layout(), 2 * (self.max_writers + 1) + 2
        if self.frames < min(least, plan.blocks):
            raise ConfigError(
                f"host_memory of {disk.host_memory:,} bytes has room for {self.frames} blocks of {plan.block_bytes:,} "
                f"bytes, and {self.max_writers} writers need {least}. Give at least {least * plan.block_bytes:,} bytes"
            )
        if disk.capacity is not None and self.tiered and plan.data_bytes > disk.capacity:
            raise ConfigError(
                f"table {self.name!r} of {self.max_size:,} rows takes up to {plan.data_bytes:,} bytes of disk, and "
                f"capacity is {disk.capacity:,}. Raise capacity or lower max_size"
            )
        if self.tiered and self.messages is None:
            object.__setattr__(self, "messages", Messages.of(self.schema, plan, disk.compression))

    @property
    def frames(self) -> int:
        """Blocks that host memory has room for."""
        plan = self.block_layout()
        return plan.blocks if self.disk is None else min(plan.blocks, self.disk.host_memory // plan.block_bytes)

    @property
    def tiered(self) -> bool:
        """Whether blocks may lie on disk: not where all of them fit in memory."""
        return self.frames < self.block_layout().blocks

    def _check_lengths(self) -> None:
        """Rows that vary in length."""
        ragged = [column.name for column in self.schema.ragged]
        if not ragged:
            return
        unknown = [column.name for column in self.schema.ragged if column.mean_length is None]
        if unknown:
            raise ConfigError(
                f"the rows of column {', '.join(unknown)} vary in length, and it is not said how long they are in the "
                "mean: give Column(..., mean_length=n). The table gets room for max_size such rows"
            )
        names = f"column {', '.join(ragged)}, whose rows vary in length,"
        if self.slots:
            raise ConfigError(f"{names} cannot be in a table that takes rows out one by one: use removers.Fifo()")
        if batched := [column.name for column in self.schema.ragged if column.places is not None]:
            raise ConfigError(f"column {', '.join(batched)} has places, as batches do and tables do not. Leave it out")

    def _ranked(self, made: tuple[View, ...]) -> tuple[View, ...]:
        """Where rows leave by priority, some view has priorities."""
        if not isinstance(self.remover, removers.LowestPriority) or any(view.prioritized for view in made):
            return made
        return (replace(made[0], ranked=True), *made[1:])

    def _check_window(self, view: View) -> None:
        if view.episodic and not isinstance(self.remover, removers.Fifo):
            raise ConfigError(
                f"remover {self.remover} takes rows out one by one, and window {view.window} follows episodes. "
                "Use windows.Row(), or removers.Fifo()"
            )
        if not view.episodic:
            return
        window = view.window
        if isinstance(window, windows.Sequence) and window.strict:
            steps = window.burn_in + window.length
            if steps > self.max_size:
                raise ConfigError(
                    f"window {window} needs {steps:,} steps of an episode that are all live, and table {self.name!r} "
                    f"holds {self.max_size:,}: nothing could ever be drawn. Raise max_size, or use shorter sequences"
                )
        if not self.schema.is_episodic:
            raise ConfigError(
                f"window {view.window} follows episodes, which needs the columns obs, reward, terminated and "
                f"truncated and no next_obs; the schema has {', '.join(self.schema.names)}. "
                "Use windows.Row() for rows as stored"
            )
        unseen = [column.name for column in self.schema.obs if column.nullable]
        if unseen:
            raise ConfigError(
                f"column {', '.join(unseen)} is nullable, and window {view.window} follows episodes, whose steps all "
                "have an observation. Give a mask as an observation of its own, or use windows.Row()"
            )
        reward = self.schema.column("reward")
        if view.sums_rewards and reward.nullable:
            raise ConfigError(f"window {view.window} sums rewards, and column 'reward' is nullable. Take nullable away")
        if view.sums_rewards and (reward.shape != () or str(reward.dtype) not in ("float32", "float64")):
            raise ConfigError(
                f"window {view.window} computes rewards, which must be float32 or float64 numbers; "
                f"column 'reward' is {reward.dtype} of shape {reward.shape}"
            )
        self._check_columns(view)

    def _check_columns(self, view: View) -> None:
        """The columns that a window names."""
        window = view.window
        state = window.state if isinstance(window, windows.Sequence | windows.Episode) else ()
        roles = {"reward", "terminated", "truncated", *(column.name for column in self.schema.obs)}
        for name in state:
            if name in roles or name not in self.schema:
                raise ConfigError(
                    f"state of window {view.name!r} names {name!r}: give columns of the schema that hold recurrent "
                    f"state, not observations, rewards or ends; it has {', '.join(self.schema.names)}"
                )
        if isinstance(window, windows.Hindsight):
            goal, achieved = (self.schema.column(name) for name in (window.goal, window.achieved))
            if goal not in self.schema.obs or achieved not in self.schema.obs:
                raise ConfigError(f"goal {goal.name!r} and achieved {achieved.name!r} must be observations, as 'obs/x'")
            if (goal.dtype, goal.shape, goal.text) != (achieved.dtype, achieved.shape, achieved.text):
                raise ConfigError(
                    f"goal {goal.name!r} is {goal.dtype} of shape {goal.shape}, achieved {achieved.name!r} "
                    f"{achieved.dtype} of shape {achieved.shape}: one must be able to take the other's place"
                )

    @property
    def episodic(self) -> bool:
        """Whether rows are chained into episodes."""
        return any(view.episodic for view in self.views)

    @property
    def prioritized(self) -> bool:
        """Whether rows have priorities, of some window at least."""
        return any(view.prioritized for view in self.views)

    @property
    def slots(self) -> bool:
        """Whether each row is a block of its own, because rows leave one by one."""
        return not isinstance(self.remover, removers.Fifo)

    def block_layout(self) -> layout.BlockLayout:
        """Return how the rows are cut into blocks.

        Raises:
            ConfigError: more rows than a table can number.
        """
        if self.slots:
            plan = layout.plan_slots(self.schema, self.max_size, max_writers=self.max_writers)
        else:
            plan = layout.plan(
                self.schema,
                self.max_size,
                max_writers=self.max_writers,
                mean_episode_length=self.mean_episode_length if self.episodic else None,
                holes=self.max_times_sampled is not None,
                host_bytes=None if self.disk is None else self.disk.host_memory,
                packed=self.disk is not None and self.disk.compression is not None,
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
        settings = native.Settings()
        limiting.put(self.limiter, self.max_times_sampled, settings)
        record = native.TableSpec(
            name=self.name,
            spec=self.to_json().encode(),
            offsets=list(plan.offsets),
            row_bytes=list(plan.row_bytes),
            element_bytes=[column.element_bytes for column in self.schema.columns],
            mean_bytes=[math.ceil(column.mean_bytes) for column in self.schema.columns],
            values_offset=plan.values,
            max_size=self.max_size,
            rows_per_block=plan.rows,
            n_blocks=plan.blocks,
            n_frames=self.frames,
            block_bytes=plan.block_bytes,
            views=[view.to_native() for view in self.views],
            settings=settings,
            limiter=limiting.kind(self.limiter),
            limits_inserts=limiting.limits_inserts(self.limiter),
            counts_uses=self.max_times_sampled is not None,
            seed=self.seed,
            remover=_CORE_REMOVERS[type(self.remover)],
            remover_view=next((view.index for view in self.views if view.prioritized), 0),
        )
        record.rewritable([i for i, column in enumerate(self.schema.columns) if column.mutable])
        record.categorical(
            [
                (i, column.max_values, column.max_bytes, [value.encode() for value in column.values])
                for i, column in enumerate(self.schema.columns)
                if column.max_values is not None and column.max_bytes is not None
            ]
        )
        if (queue := self.queue) is not None:
            names = self.schema.names
            version = names.index(POLICY_VERSION) if queue.max_staleness is not None else 0
            record.as_queue(len(queue.consumers), queue.lease_timeout, queue.max_staleness, version)
        return record

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
        fields["sampler"] = views.to_json(self.sampler)
        fields["window"] = views.to_json(self.window)
        fields["remover"] = {"kind": type(self.remover).__name__}
        fields["limiter"] = {"kind": type(self.limiter).__name__, **asdict(self.limiter)}
        if self.queue is not None:
            fields["queue"] = asdict(self.queue)
        if self.disk is not None:
            fields["disk"] = asdict(self.disk)
        if self.messages is not None:
            fields["messages"] = self.messages.to_json()
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
            records = {what: views.from_json(what, fields.pop(what)) for what in ("sampler", "window")}
            records["limiter"] = _record(_LIMITERS, fields.pop("limiter"))
            records["remover"] = _record(_REMOVERS, fields.pop("remover"))
            if "queue" in fields:
                fields["queue"] = QueueSettings(**fields["queue"])
            if "disk" in fields:
                fields["disk"] = Disk(**fields["disk"])
            if "messages" in fields:
                fields["messages"] = Messages.from_json(fields["messages"])
            return cls(schema=schema, **records, **fields)
        except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
            raise LayoutMismatch(
                f"the settings of a table cannot be read by this build ({error}). Use the same conduit-edp everywhere"
            ) from error


def _record(kinds: dict[str, type[Any]], fields: dict[str, Any]) -> Any:
    return kinds[fields.pop("kind")](**fields)
