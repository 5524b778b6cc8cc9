"""What the callbacks do: an algorithm's store, and who is told of it."""

from __future__ import annotations

import uuid
from typing import Any, NamedTuple

from conduit.rllib.agents import AgentsAddress, AgentsReplay
from conduit.rllib.env_runner import StoringEnvRunner
from conduit.rllib.frames import Frames
from conduit.rllib.ingest import Address
from conduit.rllib.learner import BatchLearner, EpisodeLearner
from conduit.rllib.replay import Delivering, PrioritizedReplay, Replay
from conduit.rllib.rollouts import QueueAddress, Rollouts
from conduit.rllib.support import buffer_type, check, check_recurrent, is_on_policy
from conduit.samplers import Prioritized, Uniform
from conduit.store import Store
from conduit_store.errors import ConfigError
from conduit_transport import names

__all__ = ["Settings", "on_algorithm_init", "on_env_runners_recreated", "on_train_result"]

_LEAST_QUEUE_BYTES = 4 << 20  # of an on-policy algorithm's queue: blocks of some hundred small rows


class Settings(NamedTuple):
    """What `attach` was asked for."""

    host_memory: str | int | None
    max_size: int | None
    mean_episode_length: float
    delivering: Delivering
    frames: Frames | None = None


def on_algorithm_init(settings: Settings, *, algorithm: Any, **_: Any) -> None:
    """Give the algorithm its store; env runners and learners are told of it."""
    check(algorithm.config)
    name = f"rllib-{type(algorithm).__name__}-{uuid.uuid4().hex[:12]}"
    store = Store.create(name, settings.host_memory)
    try:
        (_start_rollouts if is_on_policy(algorithm.config) else _start_replay)(settings, algorithm, store)
    except BaseException:
        store.close()
        raise


def _start_replay(settings: Settings, algorithm: Any, store: Store) -> None:
    config = algorithm.config
    buffer = config.replay_buffer_config
    prioritized = "Prioritized" in buffer_type(config)
    each = Address(
        store=store.name,
        runtime_dir=str(names.runtime_dir()),
        capacity=settings.max_size or buffer["capacity"],
        sampler=(
            Prioritized(buffer["alpha"], buffer.get("beta") or 0.0, normaliser="table") if prioritized else Uniform()
        ),
        n_step=config.n_step if isinstance(config.n_step, int) else tuple(config.n_step),
        gamma=config.gamma,
        max_writers=config.num_env_runners + 2,
        mean_episode_length=settings.mean_episode_length,
        frames=settings.frames,
        seed=config.seed or 0,
    )
    if algorithm.env_runner.module is not None and algorithm.env_runner.module.is_stateful():
        check_recurrent(config)
        if settings.frames is not None:
            raise ConfigError("frames= with a recurrent module is not covered: such a module needs no stacks")
        each = each._replace(
            max_seq_len=config.model_config["max_seq_len"], burn_in=getattr(config, "burn_in_len", 0)
        )
    saved, learners = bool(config.store_buffer_in_checkpoints), max(1, config.num_learners)
    address = AgentsAddress(each) if config.is_multi_agent else each
    kind: Any = AgentsReplay if config.is_multi_agent else PrioritizedReplay if prioritized else Replay
    replay = kind(store, address, settings.delivering, saved=saved, learners=learners)
    _register()
    _connect_learners(algorithm, BatchLearner, replay if config.num_learners == 0 else None)
    _connect(algorithm.env_runner_group, address, None)
    algorithm.env_runner_group.local_env_runner.conduit_close_with_it(replay)
    algorithm.local_replay_buffer = replay


def _start_rollouts(settings: Settings, algorithm: Any, store: Store) -> None:
    config = algorithm.config
    aggregators = getattr(config, "num_aggregator_actors_per_learner", 0)
    address = QueueAddress(
        store=store.name,
        runtime_dir=str(names.runtime_dir()),
        max_size=settings.max_size or _rows_in_flight(config),
        timeout=settings.delivering.timeout,
        opens_on_arrival=aggregators > 0,
        least_bytes=0 if settings.max_size else _LEAST_QUEUE_BYTES,
    )
    rollouts = Rollouts(store, address)
    _connect_learners(algorithm, EpisodeLearner, address)
    _connect(algorithm.env_runner_group, address, None)
    algorithm.conduit_rollouts = rollouts
    algorithm.env_runner_group.local_env_runner.conduit_close_with_it(rollouts)


def _rows_in_flight(config: Any) -> int:
    """Twice the rows that can be between env runners and learners in RLlib's own flow."""
    fragments = config.num_envs_per_env_runner * (config.get_rollout_fragment_length() + 2)
    requests = (config.num_env_runners or 1) * (1 + config.max_requests_in_flight_per_env_runner)
    aggregators = config.num_aggregator_actors_per_learner * (config.num_learners or 1)
    packages = 1 + aggregators * config.max_requests_in_flight_per_aggregator_actor
    return int(2 * (packages * config.total_train_batch_size + requests * fragments))


def _connect_learners(algorithm: Any, kind: type[Any], to: Any) -> None:
    def connect(learner: Any) -> None:
        if not isinstance(learner, kind):
            raise ConfigError("the learner class was set after attach(): call attach() last")
        learner.conduit_connect(to)

    for result in algorithm.learner_group.foreach_learner(connect):
        if not result.ok:
            raise result.get()


def _connect(group: Any, address: Any, indices: list[int] | None) -> None:
    def connect(runner: Any) -> None:
        if not isinstance(runner, StoringEnvRunner):
            raise ConfigError("the env runner class was set after attach(): call attach() last")
        runner.conduit_connect(address)

    if indices is None:
        group.foreach_env_runner(connect)
    else:
        group.foreach_env_runner(connect, local_env_runner=False, remote_worker_ids=indices)


def on_env_runners_recreated(
    *, algorithm: Any, env_runner_group: Any, env_runner_indices: list[int], is_evaluation: bool, **_: Any
) -> None:
    """Tell env runners that were started anew where to write."""
    source = _source(algorithm)
    if not is_evaluation and source is not None:
        _connect(env_runner_group, source.address, env_runner_indices)


def on_train_result(*, algorithm: Any, result: dict[str, Any], **_: Any) -> None:
    """The store's numbers, once an iteration."""
    source = _source(algorithm)
    if isinstance(source, Replay | AgentsReplay):
        result["replay_buffer"] = {**result.get("replay_buffer", {}), **source.report()}
    elif source is not None:
        result["conduit"] = source.report()


def _source(algorithm: Any) -> Replay | AgentsReplay | Rollouts | None:
    replay = algorithm.local_replay_buffer
    if isinstance(replay, Replay | AgentsReplay):
        return replay
    return getattr(algorithm, "conduit_rollouts", None)


def _register() -> None:
    """RLlib updates priorities only in what it takes for its own prioritized buffer."""
    from ray.rllib.utils.replay_buffers import PrioritizedEpisodeReplayBuffer

    PrioritizedEpisodeReplayBuffer.register(PrioritizedReplay)
    PrioritizedEpisodeReplayBuffer.register(AgentsReplay)
