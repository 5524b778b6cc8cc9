"""TorchRL over Conduit: a replay buffer that TorchRL's trainers, collectors and loss modules take.

    buffer.py  ReplayBuffer: what they call                 keys.py  TensorDict keys and the table's columns
    parts.py   what they look at beside its methods          saving.py  its rows in a state dict, and in a folder

    >>> buffer = conduit.torchrl.ReplayBuffer(store, "replay", 100_000, sampler=conduit.samplers.Prioritized(),
    ...                                       batch_size=256)
    >>> buffer.extend(collected)
    >>> batch = buffer.sample()
    >>> loss(batch)["loss"].backward()
    >>> buffer.update_tensordict_priority(batch)

Not loaded by `import conduit`: it needs torchrl.
"""

from conduit.torchrl.buffer import ReplayBuffer

__all__ = ["ReplayBuffer"]
