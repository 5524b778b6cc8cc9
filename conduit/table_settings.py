"""What may pass a table's limiter, and its settings while it lives."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from conduit import limiting
from conduit.limiters import Limiter
from conduit.samplers import Prioritized
from conduit.schedules import Schedule
from conduit.table_handle import TableHandle
from conduit.values import real_number, whole_number
from conduit_store.errors import ConfigError

__all__ = ["TableSettings"]


class TableSettings(TableHandle):
    """The methods of `Table` that tell its settings and change them."""

    @property
    def limiter(self) -> Limiter:
        """The limiter in force: as created, or as `reconfigure` left it."""
        return limiting.in_force(self._spec.limiter, self._native.settings())

    def can_sample(self, n: int, *, window: str | None = None) -> bool:
        """Return whether `sample(n)` would go through now. Counts nothing and holds nothing: another may be quicker.

        Raises:
            ValueError: n < 1. UnknownWindow: says which there are. StoreClosed: the store was closed here.
        """
        return self._native.can_sample(self._view(window).index, whole_number("n", n, 1, (1 << 31) - 1))

    def can_insert(self, n: int) -> bool:
        """Return whether the limiter would let `n` rows in now, without a wait. Counts nothing and holds nothing.

        Raises:
            ValueError: n < 1. StoreClosed: the store was closed here.
        """
        return self._native.can_insert(whole_number("n", n, 1, (1 << 31) - 1))

    def reconfigure(
        self,
        *,
        alpha: float | None = None,
        beta: float | None = None,
        eps: float | None = None,
        min_size: int | None = None,
        samples_per_insert: float | None = None,
        error_buffer: float | None = None,
        queue_capacity: int | None = None,
        max_times_sampled: int | None = None,
        window: str | None = None,
    ) -> None:
        """Change settings for every process at once: all that is given, or nothing. Who waits obeys the new ones.

        A new alpha or eps re-weighs all rows. A new `samples_per_insert` is for the inserts to come: the cursor stays
        where it is. A lower `max_times_sampled` lets rows leave at once that have been drawn as often.
        Which kind of limiter a table has, and whether it counts how often a row is sampled, is chosen at creation.

        `window`: whose alpha, beta and eps, as in `sample`; all else is the table's.

        Raises:
            ConfigError: a number that is not allowed, that contradicts another or that this table does not have.
            UnknownWindow: says which there are. ReadOnlyStore, StoreClosed: this attach cannot change the table.
        """
        core, spec, view = self._native, self._spec, self._view(window)
        by_priority = isinstance(view.sampler, Prioritized)
        if not by_priority and not (alpha is beta is eps is None):
            what = f"table {self.name!r}" if window is None else f"window {view.name!r} of table {self.name!r}"
            raise ConfigError(f"{what} is not sampled by priority: it has no alpha, beta or eps to change")
        if beta is not None and isinstance(view.sampler, Prioritized) and isinstance(view.sampler.beta, Schedule):
            raise ConfigError(f"beta of table {self.name!r} follows {view.sampler.beta}: it cannot be set as well")
        if isinstance(beta, Schedule):
            raise ConfigError(f"beta is {beta}: a schedule is given to the sampler, at create_table")
        if max_times_sampled is not None and spec.max_times_sampled is None:
            raise ConfigError(f"table {self.name!r} was created without max_times_sampled: it counts no deliveries")
        self._check_writable()
        while True:
            settings = core.settings()
            chances = settings.view(view.index)
            chances.alpha = real_number("alpha", chances.alpha if alpha is None else alpha, 0.0, 4.0)
            chances.beta = real_number("beta", chances.beta if beta is None else beta, 0.0, 1.0)
            chances.eps = real_number("eps", chances.eps if eps is None else eps, 0.0, 1e30)
            limiter = limiting.changed(
                limiting.in_force(spec.limiter, settings), min_size=min_size, samples_per_insert=samples_per_insert,
                error_buffer=error_buffer, queue_capacity=queue_capacity,
            )  # fmt: skip
            times = (settings.max_times or None) if max_times_sampled is None else max_times_sampled
            limiting.put(limiter, limiting.check(limiter, self.max_size, times, self.name), settings)
            if core.reconfigure(settings):
                return  # else another process has changed something meanwhile

    def use_reward(self, function: Callable[[Any, Any], Any], *, window: str | None = None) -> None:
        """Give the reward function of a Hindsight window, in this process, instead of importing it by its name.

        `window`: as in `sample`; the first Hindsight window if None.

        Raises:
            ConfigError: it is no Hindsight window, or there is none. UnknownWindow: says which there are.
        """
        readers = self._readers.values() if window is None else [self._reader(window)]
        found = next((reader.relabelling for reader in readers if reader.relabelling is not None), None)
        if found is None or not callable(function):
            what = f"window {window!r}" if window is not None else "a window"
            raise ConfigError(f"use_reward({function!r}): give a function, and {what} of kind Hindsight needs it")
        found.use(function)
