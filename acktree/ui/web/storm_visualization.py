"""Storm's REST answers from which its UI draws a topology; with ``sys=true`` the acker is in them.

Source: Storm's ``UIHelpers.getVisualizationData`` and, for the acker's streams, ``StormCommon.addAcker``.
"""

from __future__ import annotations

import re
from typing import Final

from acktree.core.stats.counters import ACKER, ACKER_ACK, ACKER_FAIL, ACKER_INIT, ACKER_RESET
from acktree.ui.snapshot import ALL_TIME, STORM_WINDOWS, Snapshot
from acktree.ui.web.sources import Seen
from acktree.ui.web.storm_components import acker_numbers, sent_by_acker
from acktree.ui.web.storm_rows import FIRST_PORT, Row, decimal

_FROM_BOLTS: Final = (ACKER_ACK, ACKER_FAIL, ACKER_RESET)
_TO_SPOUTS: Final = (ACKER_ACK, ACKER_FAIL)
_PLAIN: Final = re.compile("[A-Za-z][A-Za-z0-9_.:-]*")


def visualization_init(seen: Seen, _: str = ALL_TIME, *, with_acker: bool = False) -> Row:
    """``topology/{id}/visualization-init``: the streams, four in a row. The acker's are not checked."""
    streams = sorted({edge["stream"] for edge in seen.snapshot.graph["subscriptions"]})
    of_acker = sorted({ACKER_INIT, *_FROM_BOLTS}) if with_acker else []
    cells = [
        {"stream": name, "sani-stream": _plain_name(name), "checked": name not in of_acker}
        for name in [*streams, *of_acker]
    ]
    rows = [{":row": cells[at : at + 4]} for at in range(0, len(cells), 4)]
    return {"visualizationTable": rows}


def visualization(seen: Seen, window: str, *, with_acker: bool = False) -> Row:
    """``topology/{id}/visualization``: each component with what it reads and what it sent."""
    snapshot = seen.snapshot
    nodes = {
        name: _component(snapshot, name, window, with_acker=with_acker)
        for name in snapshot.graph["components"]
    }
    return nodes | ({ACKER: _acker(snapshot, window)} if with_acker else {})


def _component(snapshot: Snapshot, name: str, window: str, *, with_acker: bool) -> Row:
    is_spout = name in snapshot.sources
    total = snapshot.windows[window].stats[name].total
    sent = {length: _sent(snapshot, name, length, with_acker=with_acker) for length in STORM_WINDOWS}
    inputs = [
        _input(edge["source"], edge["stream"], edge["grouping"].partition(" ")[0])
        for edge in snapshot.graph["subscriptions"]
        if edge["subscriber"] == name
    ]
    about = snapshot.graph["components"][name]
    inputs += [_input(about["gate_of"], stream, "gate") for stream in about["streams"] if "gate_of" in about]
    if is_spout and with_acker:
        inputs += [_input(ACKER, stream, "direct") for stream in _TO_SPOUTS]
    return {
        ":type": "spout" if is_spout else "bolt",
        ":capacity": decimal(snapshot.capacity(snapshot.windows[window], name)),
        ":latency": decimal(total.complete_ms if is_spout else total.process_ms),
        ":transferred": sum(_sent(snapshot, name, window, with_acker=with_acker).values()),
        ":stats": [_stats(snapshot, sent)],
        ":inputs": inputs,
    }


def _acker(snapshot: Snapshot, window: str) -> Row:
    numbers = acker_numbers(snapshot, window)
    sent = {length: sent_by_acker(snapshot.windows[length].stats.acker) for length in STORM_WINDOWS}
    inputs = [_input(spout, ACKER_INIT, "fields") for spout in snapshot.sources]
    inputs += [_input(bolt, stream, "fields") for bolt in snapshot.bolts for stream in _FROM_BOLTS]
    return {
        ":type": "bolt",
        ":capacity": numbers["capacity"],
        ":latency": numbers["processLatency"],
        ":transferred": numbers["transferred"],
        ":stats": [_stats(snapshot, sent)],
        ":inputs": inputs,
    }


def _sent(snapshot: Snapshot, name: str, window: str, *, with_acker: bool) -> dict[str, int]:
    """How many tuples a component sent in a window, by stream; those to the acker too where it is shown."""
    stats = snapshot.windows[window].stats
    sent = {
        stream: numbers.transferred for stream, numbers in stats[name].streams.items() if ":" not in stream
    }
    if with_acker:
        for received, count in stats.acker.received.items():
            source, _, stream = received.rpartition(":")
            if source == name:
                sent[stream] = count
    return sent


def _stats(snapshot: Snapshot, sent: dict[str, dict[str, int]]) -> Row:
    """The executors of a component, as one; ``sent`` is by window and stream."""
    plain = {
        window: {_plain_name(stream): count for stream, count in streams.items()}
        for window, streams in sent.items()
    }
    return {
        ":host": snapshot.host,
        ":port": FIRST_PORT,
        ":uptime_secs": snapshot.uptime_secs,
        ":transferred": plain,
    }


def _input(source: str, stream: str, grouping: str) -> Row:
    return {
        ":component": source,
        ":stream": stream,
        ":sani-stream": _plain_name(stream),
        ":grouping": grouping,
    }


def _plain_name(text: str) -> str:
    """A stream's name without special characters, by which the UI finds its counts: most are as they are."""
    if _PLAIN.fullmatch(text):
        return text
    return "s" + "".join(c if c.isalnum() else f"_{ord(c):x}_" for c in text)
