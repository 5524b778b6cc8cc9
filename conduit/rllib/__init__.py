"""RLlib through Conduit, in one line: `conduit.rllib.attach(config)`.

attach.py      what the user calls, and what it puts into the config
ingest.py      episodes -> rows of the table, as an env runner collects them
env_runner.py  an env runner that returns handles instead of episodes
replay.py      RLlib's replay buffer, over a table
learner.py     a learner that takes a prepared batch
rollouts.py    queues of on-policy episodes; episodes.py, forms.py: what travels; bootstrap.py: into RLlib's connectors
sequences.py   batches for recurrent modules; frames.py for stacks of frames
offline.py     CQL, whose rows come from files
measure.py     `conduit bench rllib`: where a training step's time goes, stock beside Conduit
"""

from conduit.rllib.attach import attach
from conduit.rllib.frames import Frames

__all__ = ["Frames", "attach"]
