"""Offline RL: experience in files of any size, shuffled and in batches, without a store.

    dataset.py  open, Dataset: what is there, and loaders of it    loading.py  batches prepared ahead by a thread
    shuffle.py  row groups in random order through a buffer        steps.py    windows over the rows of a row group
    files.py    rows of files, groups.py how these are read: Parquet, Arrow IPC
    saved.py    rows of a checkpoint

    >>> data = conduit.offline.open("expert/", window=conduit.windows.NStep(3, gamma=0.99))
    >>> for batch in data.loader(256, epochs=10):
    ...     train(batch["obs"], batch["action"], batch["next_obs"], batch["discount"])
    >>> data = conduit.offline.open("/data/run1", table="replay")    # what store.checkpoint wrote
"""

from conduit.offline.dataset import Dataset, open
from conduit.offline.loading import OfflineBatch, OfflineLoader

__all__ = ["Dataset", "OfflineBatch", "OfflineLoader", "open"]
