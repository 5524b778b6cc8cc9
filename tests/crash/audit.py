"""The auditor: a process that stays attached and, asked by the driver, compares the store with what it must be."""

from __future__ import annotations

import json
import os
import socket
import time
from typing import Any

import numpy as np

import conduit
from conduit_store import segment
from conduit_store.arrow import to_numpy
from tests.crash import limited, rows, varying_rows

__all__ = ["serve"]


class Auditor:
    """Answers the driver's questions. Every answer is a list of faults, empty when all is well, or a record."""

    def __init__(self, store: conduit.Store) -> None:
        self.store = store
        self.tables = {name: store.table(name) for name in store.tables()}

    def rows(self, writers: dict[str, dict[str, list[int]]], since: dict[str, list[int]]) -> list[str]:
        """Compare all rows with what the writers say that they wrote, and every count with a recount.

        `writers`: for each table, by writer id, how many serials were acknowledged and how many tried. `since`: by id
        of the writer that alone appended last, the serials (plain, episodic) from which on all its rows must be there.
        Nobody may be writing meanwhile.
        """
        faults = limited.faults(self.tables)
        for name in ("limited", "counted"):
            self.tables[name].verify()
        self.tables["varying"].verify()
        faults += varying_rows.table_faults(self.tables["varying"])
        for name in ("newest", "least"):
            table = self.tables[name]
            table.verify()
            info = table.info()
            if not len(table) == info.rows == info.blocks_open == info.appended - info.evicted <= table.max_size:
                faults.append(f"{name}: {len(table)} rows, info {info}")
        for position, name in enumerate(("plain", "episodic")):
            table = self.tables[name]
            table.verify()
            stored, keys = _stored(table)
            faults += [f"{name}: {fault}" for fault in rows.stored_faults(stored)]
            faults += _gaps(name, stored, writers[name])
            faults += _torn_steps(name, stored)
            faults += _counts(table, stored, keys)
            for writer, serials in since.items():
                due = np.arange(serials[position], writers[name][writer][0])
                due = due[~rows.is_final(due)] if name == "episodic" else due
                lost = np.setdiff1d(due, stored["serial"][stored["writer"] == int(writer)])
                faults += [f"{name}: writer {writer} lost its serials {lost.tolist()}"] if len(lost) else []
        return faults

    def light(self) -> list[str]:
        """Verify the index, draw, and attach afresh, while others run."""
        for table in self.tables.values():
            table.verify()
        faults: list[str] = []
        with conduit.Store.attach(self.store.name) as other:
            for name in ("plain", "episodic"):
                faults += rows.batch_faults(other.table(name).sample(8))
        return faults

    def memory(self) -> dict[str, Any]:
        """Return what may not grow: bytes behind the segments, descriptors, process slots; and who is alive."""
        return {
            "bytes": segment.allocated_bytes(self.store._control_fd) + segment.allocated_bytes(self.store._data_fd),
            "descriptors": len(os.listdir("/proc/self/fd")),
            "slots": len(self.store._native.processes()),
            "alive": sum(alive for _, _, alive in self.store._native.processes()),
        }

    def reused(self, within_s: float) -> list[str]:
        """Wait until every block of the tables has been given out anew: none is lost to a dead process.

        The writers must be running.
        """
        end = time.monotonic() + within_s
        missing = {name: _generations(self.tables[name]) for name in ("plain", "episodic")}
        while any(missing.values()):
            for name, before in missing.items():
                for block, generation in _generations(self.tables[name], before).items():
                    if generation > before[block]:
                        del before[block]
            if time.monotonic() > end:
                return [
                    f"blocks {sorted(blocks)} of {name} are not used any more"
                    for name, blocks in missing.items()
                    if blocks
                ]
            time.sleep(0.001)
        return []

    def info(self) -> dict[str, str]:
        """Return the tables' metrics as text, for reports."""
        return {name: str(table.info()) for name, table in self.tables.items()}


def _generations(table: conduit.Table, wanted: Any = None) -> dict[int, int]:
    """The generation of every block (0: never seen) or of those wanted that have live rows."""
    found = {} if wanted is not None else dict.fromkeys(range(table._layout.blocks), 0)
    for block in table._native.live_blocks():
        if wanted is None or block in wanted:
            try:
                found[block] = table.block(block).generation
            except conduit.StaleKey:
                continue
    return found


def _stored(table: conduit.Table) -> tuple[dict[str, Any], Any]:
    """All live rows but final observations, oldest block first, and their keys."""
    parts: dict[str, list[Any]] = {name: [] for name in table.schema.names}
    keys = []
    for view in table.blocks():
        batch = view.to_arrow()
        columns = {name: to_numpy(name, batch.column(name)) for name in parts}
        steps = columns["writer"] != 0
        for name, column in columns.items():
            parts[name].append(column[steps])
        keys.append(view.keys[steps])
    if not keys:
        return {name: np.zeros((0, *table.schema.column(name).shape)) for name in parts}, np.zeros(0, np.uint64)
    return {name: np.concatenate(part) for name, part in parts.items()}, np.concatenate(keys)


def _gaps(name: str, stored: dict[str, Any], writers: dict[str, list[int]]) -> list[str]:
    """Each writer's live rows are consecutive, in order, end with the last acknowledged or one tried after it."""
    faults: list[str] = []
    for writer in np.unique(stored["writer"]):
        serial = stored["serial"][stored["writer"] == writer]
        if str(writer) not in writers:
            faults.append(f"{name}: rows of unknown writer {writer}")
            continue
        acked, tried = writers[str(writer)]
        if name == "plain":
            place, last = serial, acked - 1
        else:  # leave the final observations out of the count
            place = serial - serial // rows.PERIOD
            last = acked - 1 - (acked % rows.PERIOD == 0)
        if (np.diff(place) != 1).any():
            faults.append(f"{name}: writer {writer} has serials {serial.tolist()}")
        if not last <= serial[-1] < tried:
            faults.append(f"{name}: writer {writer} ends with {serial[-1]}, acknowledged {acked}, tried {tried}")
    return faults


def _torn_steps(name: str, stored: dict[str, Any]) -> list[str]:
    """The environments of a vector writer end together, as far as the table still has rows of them."""
    faults: list[str] = []
    for writer in filter(rows.is_first, np.unique(stored["writer"]).tolist()):
        ends = [stored["serial"][stored["writer"] == who][-1:].tolist() for who in rows.siblings(writer)]
        if len(set(map(tuple, filter(None, ends)))) > 1:
            faults.append(f"{name}: a part of writer {writer}'s last step is in: its environments end with {ends}")
    return faults


def _counts(table: conduit.Table, stored: dict[str, Any], keys: Any) -> list[str]:
    info = table.info()
    faults: list[str] = []
    if not len(keys) == len(table) == info.rows <= table.max_size:
        faults.append(f"{table.name}: {len(keys)} rows in blocks, len {len(table)}, info {info.rows}")
    if info.appended - info.evicted != info.rows:
        faults.append(f"{table.name}: {info.appended} appended, {info.evicted} evicted, {info.rows} left")
    if info.blocks_open + info.blocks_free + info.blocks_retired != table._layout.blocks:
        faults.append(f"{table.name}: blocks do not add up: {info}")
    priorities = table.priorities(keys).astype(np.float64)
    if table.name == "episodic":  # the default is filled in when a row's window is complete
        priorities = priorities[~np.isnan(priorities)]
    if not np.isin(priorities, np.arange(1, 6)).all():
        faults.append(f"{table.name}: priorities {np.unique(priorities)} were never given")
    if table.name == "plain":
        chances = table._native.settings().view(0)
        total = float(((priorities + chances.eps) ** chances.alpha).sum())
        if abs(total - info.total_priority) > 1e-9 * total:
            faults.append(f"{table.name}: total priority {info.total_priority}, recomputed {total}")
        if len(keys) and info.max_priority != priorities.max():
            faults.append(f"{table.name}: max priority {info.max_priority}, recomputed {priorities.max()}")
    return faults


def serve(settings: dict[str, Any], link: socket.socket) -> None:
    """Create the store and its tables, then answer until the driver closes the link."""
    store = rows.create_store(settings["store"])
    for name, table in rows.TABLES.items():
        store.create_table(name, **table)
    auditor = Auditor(store)
    link.send(json.dumps({"result": auditor.memory()}).encode())
    while message := link.recv(1 << 20):
        request = json.loads(message)
        try:
            answer = {"result": getattr(auditor, request.pop("what"))(**request)}
        except conduit.ConduitError as error:
            answer = {"error": f"{type(error).__name__}: {error}"}
        link.send(json.dumps(answer).encode())
    store.close()
