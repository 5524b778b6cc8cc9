"""Where the code relies on memory orders outside the index lock, each as a program of a few accesses.

Each case takes the orders as parameters: its table gives the code's own and what a weaker one breaks. A case's words
are the smallest: one variable for a row's bytes, 0 = this life's, 1 = written by the writer (or: by the next life).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tests.model.weak import (
    ACQ_REL,
    ACQUIRE,
    RELAXED,
    RELEASE,
    SEQ_CST,
    Access,
    load,
    lock,
    rmw,
    store,
    unlock,
)

__all__ = ["CASES", "HARMLESS", "MUTATIONS", "Case"]

Program = Sequence[Sequence[Access]]
Outcome = dict[str, int]


@dataclass(frozen=True)
class Case:
    """A litmus test. `build` gets the memory orders by name and gives the threads."""

    build: Callable[[dict[str, str]], Program]
    orders: dict[str, str]  # what the code says
    wrong: Callable[[Outcome], str | None]
    start: dict[str, int]


def publication(o: dict[str, str]) -> Program:
    """Writer::append: bytes, entry, CAS pub. TableCore::fold: load pub, then entries; readers then the bytes."""
    writer = [
        store("bytes", 1, label="write_rows"),
        store("entry", 1, label="append_row_written"),
        rmw("pub", "", lambda old: old + 1, o["publish"], "append_before_publish"),
    ]
    folder = [load("pub", "count", o["fold"], "fold"), load("entry", "e"), load("bytes", "b")]
    return [writer, folder]


def sealed_publication(o: dict[str, str]) -> Program:
    """The same with an evictor that seals in between: what it reads of pub it may fold at once (evict_head)."""
    writer, _ = publication({"publish": o["publish"], "fold": RELAXED})
    seal = rmw("pub", "count", lambda old: old | 8, o["seal"], "fetch_or(kSealed)")
    sealer = [seal, load("entry", "e"), load("bytes", "b")]
    return [writer, sealer]


def leave(o: dict[str, str]) -> Program:
    """ReaderEpoch::leave against TableCore::reclaim: copies precede the idle slot. 1 = active, 2 = expelled."""
    reader = [
        load("bytes", "copied", label="gather_column"),
        rmw("slot", "left", lambda old: 0 if old == 1 else None, o["leave"], "leave"),
    ]
    reclaimer = [
        load("slot", "seen", o["scan"], "reclaim"),
        store("bytes", 1, label="next life", when=("seen", 0)),
    ]
    return [reader, reclaimer]


def expulsion(o: dict[str, str]) -> Program:
    """reclaim expels by CAS and overwrites; a reader whose leave succeeds has copied nothing of the next life."""
    reader, _ = leave({"leave": o["leave"], "scan": RELAXED})
    reclaimer = [
        rmw("slot", "expelled", lambda old: 2 if old == 1 else None, o["expel"], "expel_before"),
        store("bytes", 1, label="next life", when=("expelled", 1)),
    ]
    return [reader, reclaimer]


def enter(o: dict[str, str]) -> Program:
    """Entering against the scan: mark, lock, draw, unlock, copy; lock, look at the mark, free, unlock, overwrite."""
    locked = o["draw"] == "lock"
    reader = [
        rmw("slot", "", lambda old: 1, o["enter"], "reader_entered"),
        *([lock()] if locked else []),
        load("open", "drawn", label="draw_done"),
        *([unlock()] if locked else []),
        load("bytes", "copied", label="gather_column"),
    ]
    reclaimer = [
        lock(),
        store("open", 0, RELEASE, "retire_before"),
        load("slot", "seen", ACQUIRE, "reclaim"),
        unlock(),
        store("bytes", 1, label="next life", when=("seen", 0)),
    ]
    return [reader, reclaimer]


def unpin(o: dict[str, str]) -> Program:
    """Process::unpin against TableCore::pinned: reads through a view stay before its entry is cleared."""
    holder = [load("bytes", "copied", label="view"), store("pin", 0, o["unpin"], "unpin")]
    reclaimer = [load("pin", "seen", o["scan"], "pinned"), store("bytes", 1, label="next life", when=("seen", 0))]
    return [holder, reclaimer]


def release_block(o: dict[str, str]) -> Program:
    """Writer::release_block against reclaim: the old owner's last bytes land before the next owner's."""
    owner = [store("bytes", 5, label="write_rows"), rmw("pub", "", lambda old: old | 4, o["release"], "release_block")]
    reclaimer = [load("pub", "seen", o["reclaim"], "reclaim"), store("bytes", 1, label="next life", when=("seen", 4))]
    return [owner, reclaimer]


def announce(o: dict[str, str]) -> Program:
    """announce() against wait_rows(): publish, look at the flag; set the flag, look at pub. One must see the other."""
    writer = [
        rmw("pub", "", lambda old: old + 1, o["publish"], "append_before_publish"),
        load("waiting", "flag", o["look"], "announce"),
    ]
    waiter = [store("waiting", 1, o["flag"], "wait_rows"), load("pub", "rows", o["second look"], "wait_rows")]
    return [writer, waiter]


def reopened(o: dict[str, str]) -> Program:
    """The same where the row is the first of a block just opened: wait_rows looks at pub and at the block's state."""
    writer = [
        store("state", 1, RELEASE, "open_before_state"),
        unlock(),
        rmw("pub", "", lambda old: old + 1, SEQ_CST, "append_before_publish"),
        load("waiting", "flag", SEQ_CST, "announce"),
    ]
    state = load("state", "open", o["state"].split()[0], "wait_rows")
    pub = load("pub", "rows", SEQ_CST, "wait_rows")
    looks = [pub, state] if o["state"].endswith("after pub") else [state, pub]
    return [writer, [store("waiting", 1, SEQ_CST, "wait_rows"), *looks]]


def claim(o: dict[str, str]) -> Program:
    """Process::check in a forked child: a thread that finds the slot claimed uses what the claiming thread wrote."""
    first = [store("slot", 1, label="claim_slot"), store("claimed", 1, RELEASE, "attach_cleaned")]
    return [first, [load("claimed", "done", o["check"], "check"), load("slot", "used", label="pin")]]


def _others_slot(f: Outcome) -> str | None:
    return "a child's thread works in its parent's slot" if f["done"] and not f["used"] else None


def _missed(f: Outcome) -> str | None:
    unseen = f["flag"] == 0 and not (f["rows"] and f["open"])
    return "the waiter sleeps and the writer has not seen it" if unseen else None


def _torn(f: Outcome) -> str | None:
    return "a published row was read before it was whole" if f["count"] % 8 and (f["e"], f["b"]) != (1, 1) else None


def _late_copy(f: Outcome) -> str | None:
    return "a batch with bytes of the next life was returned" if f["left"] == 1 and f["copied"] == 1 else None


def _drawn_copy(f: Outcome) -> str | None:
    both = f["drawn"] == 1 and f["seen"] == 0 and f["copied"] == 1
    return "a drawn row was overwritten under a reader that had entered" if both else None


def _pinned(f: Outcome) -> str | None:
    return "a view showed bytes of the next life" if f["copied"] == 1 else None


def _overwritten(f: Outcome) -> str | None:
    return "the old owner wrote into the next life" if f["seen"] == 4 and f["bytes"] == 5 else None


def _asleep(f: Outcome) -> str | None:
    return "the waiter sleeps and the writer has not seen it" if f["flag"] == 0 and f["rows"] == 0 else None


CASES = {
    "publication": Case(publication, {"publish": SEQ_CST, "fold": ACQUIRE}, _torn, {}),
    "sealed publication": Case(sealed_publication, {"publish": SEQ_CST, "seal": ACQ_REL}, _torn, {}),
    "leave": Case(leave, {"leave": ACQ_REL, "scan": ACQUIRE}, _late_copy, {"slot": 1}),
    "expulsion": Case(expulsion, {"leave": ACQ_REL, "expel": ACQ_REL}, _late_copy, {"slot": 1}),
    "enter": Case(enter, {"enter": ACQ_REL, "draw": "lock"}, _drawn_copy, {"open": 1}),
    "unpin": Case(unpin, {"unpin": RELEASE, "scan": ACQUIRE}, _pinned, {"pin": 1}),
    "release": Case(release_block, {"release": ACQ_REL, "reclaim": ACQUIRE}, _overwritten, {}),
    "announce": Case(
        announce, {"publish": SEQ_CST, "look": SEQ_CST, "flag": SEQ_CST, "second look": SEQ_CST}, _asleep, {}
    ),
    "claim": Case(claim, {"check": ACQUIRE}, _others_slot, {}),
    "reopened": Case(reopened, {"state": f"{RELAXED} after pub"}, _missed, {"lock": 1}),
}

# (case, access, weaker order): what must be caught
MUTATIONS = (
    ("publication", "publish", RELAXED),
    ("publication", "fold", RELAXED),
    ("sealed publication", "publish", RELAXED),
    ("sealed publication", "seal", RELAXED),
    ("leave", "leave", RELAXED),
    ("enter", "draw", "no lock"),
    ("unpin", "unpin", RELAXED),
    ("release", "release", RELAXED),
    ("announce", "publish", ACQ_REL),
    ("announce", "look", RELAXED),
    ("announce", "flag", RELEASE),
    ("announce", "second look", RELAXED),
    ("reopened", "state", f"{RELAXED} before pub"),
    ("claim", "check", RELAXED),
)

_CONTROL = "the overwrite is conditional on what was read, and no processor stores ahead of a branch; C++ asks for it"
HARMLESS = {
    ("leave", "scan", RELAXED): _CONTROL,
    ("expulsion", "expel", RELAXED): _CONTROL,
    ("unpin", "scan", RELAXED): _CONTROL,
    ("release", "reclaim", RELAXED): _CONTROL,
    ("expulsion", "leave", RELAXED): "an expelled reader's CAS fails in any order; its order is for the case above",
    ("publication", "publish", RELEASE): "seq_cst is for announce(), which follows",
    ("reopened", "state", f"{SEQ_CST} before pub"): "as good, and dearer",
    ("enter", "enter", RELAXED): "the index lock that follows orders the mark before the scan; kept for readability",
}
