"""`attach`: what the user calls, and what it puts into the config."""

from __future__ import annotations

import uuid
from functools import partial
from typing import Any, NamedTuple

from conduit.loader import LoaderSettings
from conduit.rllib.env_runner import StoringEnvRunner, storing
from conduit.rllib.ingest import Address
from conduit.rllib.learner import BatchLearner, taking_batches
from conduit.rllib.replay import Delivering, PrioritizedReplay, Replay
from conduit.samplers import Prioritized, Uniform
from conduit.store import Store
from conduit_store.errors import ConfigError, MissingExtra
from conduit_transport import names

__all__ = ["attach"]

_BUFFERS = {"EpisodeReplayBuffer": Replay, "PrioritizedEpisodeReplayBuffer": PrioritizedReplay}


class Settings(NamedTuple):
    """What `attach` was asked for."""

    host_memory: str | int | None
    max_size: int | None
    mean_episode_length: float
    delivering: Delivering


def attach(
    config: Any,
    *,
    host_memory: str | int | None = None,
    max_size: int | None = None,
    mean_episode_length: float = 100.0,
    prefetch: int | str = "auto",
    max_priority_drift: float | None = None,
    sample_timeout: float | None = 60.0,
) -> Any:
    """Let an RLlib config's algorithm keep its experience in a Conduit store. Returns the config.

        config = conduit.rllib.attach(DQNConfig().environment("CartPole-v1"))
        algo = config.build_algo()

    For DQN and SAC on RLlib's new API stack, one agent, feed-forward modules, a learner in the driver
    (`num_learners=0`); env runners local or remote, on this node. Every algorithm built from the config gets a store of
    its own, closed by `algo.stop()`. Nothing of RLlib is replaced: the config gets a subclass of its env runner class,
    a subclass of its learner class and three callbacks behind the user's own. Set the learner, env runner and
    callback classes of your own before this call.

    `host_memory`: what the store may take, as "4GiB"; half of what is available if None. Replay memory is reserved
    whole when the first step comes. `max_size`: rows of the replay; the buffer's `capacity` if None.
    `mean_episode_length`: steps of a typical episode, or fewer: there is room for that many final observations.
    `prefetch`, `max_priority_drift`: batches prepared behind the update, see `Table.loader`. "auto" prepares one ahead
    at most under prioritized replay: drawn before the update that runs meanwhile has set its priorities. With prefetch
    0, or a drift of 0, a batch is drawn from all priorities set until it is asked for, as RLlib does.
    `sample_timeout`: seconds that a draw may wait for rows.

    Raises:
        ConfigError: a config that this integration does not cover; says which setting, and what to do.
        MissingExtra: ray is not installed.
    """
    try:
        from ray.rllib.algorithms.algorithm_config import AlgorithmConfig
        from ray.rllib.algorithms.dqn.dqn import DQN
        from ray.rllib.env.single_agent_env_runner import SingleAgentEnvRunner
    except ImportError as error:
        raise MissingExtra(
            "conduit.rllib needs ray 2.60 with RLlib and torch: pip install 'conduit-edp[rllib]'"
        ) from error
    if not isinstance(config, AlgorithmConfig):
        raise ConfigError(f"attach() got a {type(config).__name__}: give an RLlib AlgorithmConfig, as DQNConfig()")
    if config.algo_class is None or not issubclass(config.algo_class, DQN):
        name = getattr(config.algo_class, "__name__", "no algorithm")
        raise ConfigError(f"attach() got a config for {name}: DQN, SAC and what derives from them are covered")
    _check(config)
    delivering = Delivering(prefetch, max_priority_drift, sample_timeout)
    LoaderSettings(batch_size=1, prefetch=prefetch, max_priority_drift=max_priority_drift, timeout=sample_timeout)
    settings = Settings(host_memory, max_size, mean_episode_length, delivering)
    config.env_runners(env_runner_cls=storing(config.env_runner_cls or SingleAgentEnvRunner))
    config.learners(learner_class=taking_batches(config.learner_class))
    config.callbacks(
        on_algorithm_init=_appended(config.callbacks_on_algorithm_init, partial(_on_algorithm_init, settings)),
        on_env_runners_recreated=_appended(config.callbacks_on_env_runners_recreated, _on_env_runners_recreated),
        on_train_result=_appended(config.callbacks_on_train_result, _on_train_result),
    )
    return config


def _check(config: Any) -> None:
    """Refuse what is not covered, by name."""
    refused = {
        "the old API stack": not config.enable_env_runner_and_connector_v2,
        "several agents (multi_agent())": config.is_multi_agent,
        f"num_learners={config.num_learners}; use 0, the learner in the driver": config.num_learners > 0,
        "offline data (input_)": not config.is_online,
        "a learner connector of your own: it works on episodes, which stay in the store": config._learner_connector,
        f"n_step={config.n_step}; give one number": not isinstance(config.n_step, int),
        "a recurrent module (use_lstm)": bool((config.model_config or {}).get("use_lstm")),
    }
    for what, given in refused.items():
        if given:
            raise ConfigError(f"conduit.rllib does not cover {what}")
    kind = _buffer_type(config)
    if kind not in _BUFFERS:
        raise ConfigError(f"replay_buffer_config type {kind!r} is not covered: give one of {', '.join(_BUFFERS)}")


def _buffer_type(config: Any) -> str:
    kind = config.replay_buffer_config.get("type")
    return str(getattr(kind, "__name__", kind)).rpartition(".")[2]


def _appended(existing: Any, ours: Any) -> list[Any]:
    """The user's callbacks, then ours: once, however often the config is attached."""
    listed = [] if existing is None else list(existing) if isinstance(existing, (list, tuple)) else [existing]
    target = getattr(ours, "func", ours)
    return [*(callback for callback in listed if getattr(callback, "func", callback) is not target), ours]


def _on_algorithm_init(settings: Settings, *, algorithm: Any, **_: Any) -> None:
    """Give the algorithm its store: replay buffer, env runners and learner are told of it."""
    config = algorithm.config
    _check(config)
    runners = config.num_env_runners + 2
    buffer = config.replay_buffer_config
    kind = _BUFFERS[_buffer_type(config)]
    sampler = (
        Prioritized(buffer["alpha"], buffer.get("beta") or 0.0, normaliser="table")
        if kind is PrioritizedReplay
        else Uniform()
    )
    name = f"rllib-{type(algorithm).__name__}-{uuid.uuid4().hex[:12]}"
    address = Address(
        store=name,
        runtime_dir=str(names.runtime_dir()),
        capacity=settings.max_size or buffer["capacity"],
        sampler=sampler,
        n_step=config.n_step,
        gamma=config.gamma,
        max_writers=runners,
        mean_episode_length=settings.mean_episode_length,
        seed=config.seed or 0,
    )
    store = Store.create(name, settings.host_memory)
    replay = kind(store, address, settings.delivering, saved=bool(config.store_buffer_in_checkpoints))
    try:
        _register()
        if not isinstance(algorithm.learner_group._learner, BatchLearner):
            raise ConfigError("the learner class was set after attach(): call attach() last")
        algorithm.learner_group.foreach_learner(lambda learner: learner.conduit_connect(replay))
        _connect(algorithm.env_runner_group, address, None)
    except BaseException:
        replay.close()
        raise
    algorithm.local_replay_buffer = replay


def _connect(group: Any, address: Address, indices: list[int] | None) -> None:
    def connect(runner: Any) -> None:
        if not isinstance(runner, StoringEnvRunner):
            raise ConfigError("the env runner class was set after attach(): call attach() last")
        runner.conduit_connect(address)

    if indices is None:
        group.foreach_env_runner(connect)
    else:
        group.foreach_env_runner(connect, local_env_runner=False, remote_worker_ids=indices)


def _on_env_runners_recreated(
    *, algorithm: Any, env_runner_group: Any, env_runner_indices: list[int], is_evaluation: bool, **_: Any
) -> None:
    """Tell env runners that were started anew where to write."""
    replay = algorithm.local_replay_buffer
    if not is_evaluation and isinstance(replay, Replay):
        _connect(env_runner_group, replay.address, env_runner_indices)


def _on_train_result(*, algorithm: Any, result: dict[str, Any], **_: Any) -> None:
    """The buffer's numbers, once an iteration."""
    replay = algorithm.local_replay_buffer
    if isinstance(replay, Replay):
        result["replay_buffer"] = {**result.get("replay_buffer", {}), **replay.report()}


def _register() -> None:
    """RLlib updates priorities only in what it takes for its own prioritized buffer."""
    from ray.rllib.utils.replay_buffers import PrioritizedEpisodeReplayBuffer

    PrioritizedEpisodeReplayBuffer.register(PrioritizedReplay)
