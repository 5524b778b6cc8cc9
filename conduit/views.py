"""Views: the windows of a table by name, each with the sampler that draws its rows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, is_dataclass
from typing import Any

from conduit import samplers, schedules, windows
from conduit.values import check_name
from conduit_store.errors import ConfigError, UnknownWindow, did_you_mean
from conduit_store.native import native

__all__ = ["View", "alternatives", "find", "from_json", "named", "to_json"]

MAX_VIEWS = 4
DEFAULT_NAME = "default"  # of a single window that was given without a name

_SAMPLERS: dict[str, type[Any]] = {kind.__name__: kind for kind in samplers.Sampler.__args__}
_SCHEDULES: dict[str, type[Any]] = {kind.__name__: kind for kind in schedules.Schedule.__args__}
_CORE_SAMPLERS: dict[type[Any], int] = {samplers.Fifo: 1, samplers.Lifo: 2, samplers.WithoutReplacement: 3}
_CORE_SCHEDULES: dict[type[Any], int] = {schedules.Linear: 1, schedules.Exponential: 2}
_WINDOWS: dict[str, type[Any]] = {kind.__name__: kind for kind in windows.Window.__args__}
_WHOLE_PAST = (1 << 32) - 1  # layout.hpp


@dataclass(frozen=True, slots=True)
class View:
    """One window of a table: its place, its name, what it covers and how its rows are drawn."""

    index: int
    name: str
    window: windows.Window
    sampler: samplers.Sampler
    ranked: bool = False  # keeps priorities for the table's remover, whatever the sampler

    @property
    def episodic(self) -> bool:
        """Whether the window follows episodes."""
        return not isinstance(self.window, windows.Row)

    @property
    def prioritized(self) -> bool:
        """Whether rows of this view have priorities."""
        return self.ranked or isinstance(self.sampler, samplers.Prioritized)

    @property
    def distinct(self) -> bool:
        """Whether a batch has each row at most once."""
        return not isinstance(self.sampler, samplers.Uniform | samplers.Prioritized)

    @property
    def steps(self) -> int:
        """Steps that the window has, from the drawn row on, unless the episode ends before; 0 without episodes."""
        match self.window:
            case windows.Row():
                return 0
            case windows.Transition():
                return 1
            case windows.Sequence(length=length) | windows.Episode(max_length=length):
                return length
            case window:
                return window.n

    @property
    def next_obs(self) -> bool:
        """Whether the window needs the observation after its last step."""
        window = self.window
        return window.next_obs if isinstance(window, windows.Sequence | windows.Episode) else self.episodic

    @property
    def before(self) -> int:
        """Rows that the window needs before the drawn one, if its episode has them."""
        match self.window:
            case windows.Sequence(burn_in=burn_in):
                return burn_in
            case windows.FrameStack(k=k):
                return k - 1
            case windows.Hindsight(strategy="episode"):
                return _WHOLE_PAST
            case _:
                return 0

    @property
    def period(self) -> int:
        """Windows begin at the steps of an episode whose number it divides."""
        match self.window:
            case windows.Sequence(period=period) | windows.Episode(max_length=period):
                return period
            case _:
                return 1

    @property
    def whole(self) -> bool:
        """Whether the episode must have ended."""
        window = self.window
        return isinstance(window, windows.Episode) or (
            isinstance(window, windows.Hindsight) and window.strategy != "future"
        )

    @property
    def gamma(self) -> float:
        """Discount of one step; 1 where nothing is discounted."""
        window = self.window
        return 1.0 if isinstance(window, windows.Row | windows.Sequence | windows.Episode) else window.gamma

    @property
    def sums_rewards(self) -> bool:
        """Whether a batch's rewards are not just those that were stored."""
        return self.episodic and (isinstance(self.window, windows.Hindsight) or (self.steps > 1 and not self.many))

    @property
    def many(self) -> bool:
        """Whether a sample has many rows."""
        return isinstance(self.window, windows.Sequence | windows.Episode)

    @property
    def added(self) -> frozenset[str]:
        """Names of columns that a batch has beside those of the table and next_obs."""
        if not self.episodic:
            return frozenset()
        if self.many:
            return frozenset({"mask", "length"})
        goals = {"relabelled", "achieved"} if isinstance(self.window, windows.Hindsight) else set[str]()
        return frozenset({"discount", "n_step"} | goals)

    def to_native(self) -> native.ViewSpec:
        """Return the record that the core makes a view from."""
        # Where priorities do not decide over draws: (p + 1)^0 is 1 for every p, 0 too.
        chances = (
            self.sampler if isinstance(self.sampler, samplers.Prioritized) else samplers.Prioritized(0.0, 0.0, 1.0)
        )
        beta, schedule = chances.beta, (0, 0.0, 0.0, 1)
        if isinstance(beta, schedules.Schedule):
            schedule = (_CORE_SCHEDULES[type(beta)], beta.start, beta.end, beta.batches)
            beta = beta.start
        return native.ViewSpec(
            steps_before=self.before,
            steps_after=self.steps if self.next_obs or not self.steps else self.steps - 1,
            period=self.period,
            strict=isinstance(self.window, windows.Sequence) and self.window.strict,
            whole=self.whole,
            last_step=self.episodic and not self.next_obs,
            prioritized=self.prioritized,
            alpha=chances.alpha,
            beta=beta,
            eps=chances.eps,
            sampler=_CORE_SAMPLERS.get(type(self.sampler), 0),
            stratified=bool(getattr(self.sampler, "stratified", False)),
            beta_schedule=schedule,
        )


def named(window: Any, sampler: Any) -> tuple[View, ...]:
    """Return the views of a table: `window` is one window or several by name; `sampler` one for all, or by name.

    Raises:
        ConfigError: no or too many windows, a name that is not allowed, names that differ, or values of other kinds.
    """
    if not isinstance(window, Mapping):
        if isinstance(sampler, Mapping):
            raise ConfigError(f"sampler names windows ({_list(sampler)}) and window is one without a name: name both")
        window = {DEFAULT_NAME: window}
    if not 1 <= len(window) <= MAX_VIEWS:
        raise ConfigError(f"window has {len(window)} entries: give 1 to {MAX_VIEWS}")
    for name in window:
        check_name("window", name)
    given = dict(sampler) if isinstance(sampler, Mapping) else dict.fromkeys(window, sampler)
    if given.keys() != window.keys():
        raise ConfigError(f"sampler names {_list(given)}, window names {_list(window)}: give the same names")
    views = tuple(View(i, name, what, given[name]) for i, (name, what) in enumerate(window.items()))
    for view in views:
        where = "" if view.name == DEFAULT_NAME else f" {view.name!r}"
        for field, value, kinds in (
            ("sampler", view.sampler, samplers.Sampler),
            ("window", view.window, windows.Window),
        ):
            if not isinstance(value, kinds):
                raise ConfigError(f"{field}{where} is {value!r}: give an instance of {alternatives(kinds)}")
    return views


def find(views: tuple[View, ...], name: object, table: str) -> View:
    """Return the view of that name, the first for None.

    Raises:
        UnknownWindow: there is none; says which there are.
    """
    if name is None:
        return views[0]
    for view in views:
        if isinstance(name, str) and view.name == name:
            return view
    names = [view.name for view in views]
    raise UnknownWindow(
        f"table {table!r} has no window {name!r}; it has {', '.join(names)}.{did_you_mean(name, names)}"
    )


def to_json(value: Any) -> dict[str, Any]:
    """Return a sampler or window, or several by name, as JSON can hold it."""
    if isinstance(value, Mapping):
        return {name: to_json(record) for name, record in value.items()}
    record: dict[str, Any] = {"kind": type(value).__name__}
    for field in fields(value):
        part = getattr(value, field.name)
        record[field.name] = to_json(part) if is_dataclass(part) else part
    return record


def from_json(field: str, record: dict[str, Any]) -> Any:
    """Return what `to_json` was given, for `field` "sampler" or "window"."""
    kinds = {"sampler": _SAMPLERS, "window": _WINDOWS, "schedule": _SCHEDULES}[field]
    if not isinstance(record.get("kind"), str):  # a window may be called "kind": that one is a dict
        return {name: from_json(field, part) for name, part in record.items()}
    given = {
        name: from_json("schedule", part) if isinstance(part, dict) else part
        for name, part in record.items()
        if name != "kind"
    }
    return kinds[record["kind"]](**given)


def alternatives(kinds: Any) -> str:
    """Return the names of the classes of a union, for messages."""
    members = getattr(kinds, "__args__", (kinds,))
    return " or ".join(f"{member.__module__.removeprefix('conduit.')}.{member.__qualname__}" for member in members)


def _list(names: Mapping[str, Any]) -> str:
    return ", ".join(map(str, names)) or "none"
