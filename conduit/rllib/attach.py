"""`attach`: what the user calls, and what it puts into the config."""

from __future__ import annotations

from functools import partial
from typing import Any

from conduit.loader import LoaderSettings
from conduit.rllib.env_runner import storing
from conduit.rllib.frames import Frames
from conduit.rllib.learner import opening_episodes, taking_batches
from conduit.rllib.replay import Delivering
from conduit.rllib.starting import Settings, on_algorithm_init, on_env_runners_recreated, on_train_result
from conduit.rllib.support import check, check_frames, is_offline, is_on_policy
from conduit_store.errors import ConfigError, MissingExtra

__all__ = ["attach"]

_BATCHES_AHEAD = 4  # of files, prepared by a thread; they depend on nothing that is learnt


def attach(
    config: Any,
    *,
    host_memory: str | int | None = None,
    max_size: int | None = None,
    mean_episode_length: float = 100.0,
    prefetch: int | str = "auto",
    max_priority_drift: float | None = None,
    sample_timeout: float | None = 60.0,
    frames: Frames | None = None,
) -> Any:
    """Let an RLlib config's algorithm keep its experience in a Conduit store. Returns the config.

        config = conduit.rllib.attach(DQNConfig().environment("CartPole-v1"))
        algo = config.build_algo()

    For DQN, SAC, TQC, PPO, APPO and IMPALA on RLlib's new API stack; env runners local or remote, on this node. Every
    algorithm built from the config gets a store of its own, closed by `algo.stop()`. Nothing of RLlib is replaced: the
    config gets a subclass of its env runner class, a subclass of its learner class and three callbacks behind the
    user's own. Set the learner, env runner and callback classes of your own before this call.

    And for CQL, whose rows come from files: its config gets a class of offline data, and there is no store.

    `host_memory`: what the store may take, as "4GiB"; half of what is available if None. Its memory is reserved
    whole when the first step comes. Of CQL: memory of the shuffle, "256MiB" if None.
    `max_size`: rows of the replay; the buffer's `capacity` if None. Of PPO, APPO and IMPALA: rows of the queue of
    episodes that no learner has opened yet, one for each step and one for each episode.
    `mean_episode_length`: steps of a typical episode, or fewer: a replay has room for that many final observations.
    `prefetch`, `max_priority_drift`: batches prepared behind the update, see `Table.loader`. "auto" prepares one ahead
    at most under prioritized replay: drawn before the update that runs meanwhile has set its priorities. With prefetch
    0, or a drift of 0, a batch is drawn from all priorities set until it is asked for, as RLlib does.
    `frames`: with replay, of observations that are stacks of frames: each is stored once, see `Frames`.
    `sample_timeout`: seconds that a draw may wait for rows, or an env runner for room in the queue of episodes.

    Raises:
        ConfigError: a config that this integration does not cover; says which setting, and what to do.
        MissingExtra: ray is not installed.
    """
    try:
        from ray.rllib.algorithms.algorithm_config import AlgorithmConfig
        from ray.rllib.env.multi_agent_env_runner import MultiAgentEnvRunner
        from ray.rllib.env.single_agent_env_runner import SingleAgentEnvRunner
    except ImportError as error:
        raise MissingExtra(
            "conduit.rllib needs ray 2.60 with RLlib and torch: pip install 'conduit-edp[rllib]'"
        ) from error
    if not isinstance(config, AlgorithmConfig):
        raise ConfigError(f"attach() got a {type(config).__name__}: give an RLlib AlgorithmConfig, as DQNConfig()")
    check(config)
    LoaderSettings(batch_size=1, prefetch=prefetch, max_priority_drift=max_priority_drift, timeout=sample_timeout)
    if frames is not None:
        check_frames(config)
    if is_offline(config):
        from conduit.rllib.offline import Reading, reading  # pyarrow

        ahead = max(1, prefetch) if isinstance(prefetch, int) else _BATCHES_AHEAD
        config.offline_data(offline_data_class=reading(Reading(host_memory or "256MiB", ahead)))
        return config
    delivering = Delivering(prefetch, max_priority_drift, sample_timeout)
    settings = Settings(host_memory, max_size, mean_episode_length, delivering, frames)
    env_runner = config.env_runner_cls or (MultiAgentEnvRunner if config.is_multi_agent else SingleAgentEnvRunner)
    learner = opening_episodes if is_on_policy(config) else taking_batches
    config.env_runners(env_runner_cls=storing(env_runner))
    config.learners(learner_class=learner(config.learner_class))
    config.callbacks(
        on_algorithm_init=_appended(config.callbacks_on_algorithm_init, partial(on_algorithm_init, settings)),
        on_env_runners_recreated=_appended(config.callbacks_on_env_runners_recreated, on_env_runners_recreated),
        on_train_result=_appended(config.callbacks_on_train_result, on_train_result),
    )
    return config


def _appended(existing: Any, ours: Any) -> list[Any]:
    """The user's callbacks, then ours: once, however often the config is attached."""
    listed = [] if existing is None else list(existing) if isinstance(existing, (list, tuple)) else [existing]
    target = getattr(ours, "func", ours)
    return [*(callback for callback in listed if getattr(callback, "func", callback) is not target), ours]
