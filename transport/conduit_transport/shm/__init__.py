"""Processes of one node attach to a store: its name leads to a Unix socket, any holder answers with the
store's descriptors.

- `rendezvous`: takes and frees a name (`listen`, `is_live`, `unlink`);
- `handshake`: the two messages, one each way, and who is let in;
- `server`: `Server` answers in a thread, in every process that holds the store;
- `client`: `connect` asks.

    client                               holder
      | connect; Hello: layout, read-only? |
      | ---------------------------------> |   same uid or root, same layout
      | Reply: status, sizes; descriptors  |
      | <--------------------------------- |   control, data, listener (or: control, data opened read-only)

The listener travels too, so the name outlives its creator: it leads to a store for as long as any process
holds it.
"""

from .client import Attached, connect
from .handshake import Handshake, Peer, peer_credentials
from .rendezvous import is_live, listen, unlink
from .server import Server

__all__ = [
    "Attached",
    "Handshake",
    "Peer",
    "Server",
    "connect",
    "is_live",
    "listen",
    "peer_credentials",
    "unlink",
]
