"""How processes reach a store: transports, below the API and above `conduit_store`.

Layout, lowest first:

- `forks`: descriptors that a forked child must not keep;
- `names`: where the names of a node's stores live (runtime directory, socket paths);
- `shm`: processes of one node attach by receiving the store's descriptors over a Unix socket.

A transport knows nothing of what lies in a segment. It hands over descriptors, sizes, a layout version and
a fingerprint, and refuses what does not match.
"""

from . import names, shm

__all__ = ["names", "shm"]
