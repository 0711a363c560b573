"""The durable files of a checkpoint: their formats, and the version that they share.

::

    what                format                                                  written and read by
    acktree.json        JSON: the facts, with ``version`` and CRC-32            facts.py
    synced-N            an empty envelope; the number is in the name            power_cut.py
    lock                JSON: who holds it                                      holding.py
    inbox/*             an envelope; in it JSON, or a chunk: packed arrays,     inbox.py, tasks/chunk.py
                        JSON head, Arrow IPC; message ids, position as values
    commits/N           an envelope; in it JSON, and the sections, packed:      commit_log.py, envelope.py
      acker             JSON, packed arrays                                     acker_log.py
      verdicts          packed arrays; of each failure a pickle of texts and    journal.py, tasks/acker.py,
                        numbers, its version first, the exception as a value    core/tracking/verdicts.py
      gates             JSON, packed arrays; Arrow IPC, or its place in staged/ gate_log.py, core/gate.py,
                                                                                core/tracking/origins.py
      keys              packed arrays, digests                                  key_log.py
      memory            JSON: the newest file of each task                      memory_log.py
      metrics           JSON                                                    core/stats/user_metrics.py
      counts            JSON, compressed                                        driver/metrics/total_counts.py
    payloads/*, ids/*,  envelopes; in each packed arrays, Arrow IPC             acker_log.py, journal.py,
    verdicts/N.*                                                                row_files.py
    verdicts/told       an envelope; in it a number as text                     journal.py
    staged/N-*          envelopes; in each Arrow IPC                            staged_files.py
    memory-N/T          packed: names, and each blob of the five below          migrated_state.py
    state*/T/*          checked blobs, packed index; the blobs of task T:       memory_files.py
      attribute/A       packed: names of held tuples, a value                   tasks/bolts/memory.py
      state/A/meta      JSON: bits, count                                       core/state/key_value_state.py
                        of a ColumnState: buckets, count, key, fields           core/state/column_table.py
      state/A/bucket/N  packed: names of held tuples, a dict as a value         tasks/bolts/memory.py
                        of a ColumnState: packed JSON and columns               core/state/column_blobs.py
      held/meta         JSON: bits, count                                       core/state/key_value_state.py
      held/bucket/N     pickle of number -> record; a record is: numbers, their tasks/bolts/held_tuples.py
                        version first, names as JSON, lineage, values
    dead_letters.*      columns, with a separate version; payload: Arrow        dead_letters/table.py

At a URL the blobs of tasks are in Spark's state
store (``spark*/state``, ``spark/query/state_blobs.py``).

*Packed* is ``core/packing.py``. *A value* is ``core/durable.py``: a pickle, with a tag for each class of
acktree, so no file names a module of acktree. The pickled columns of an Arrow batch hold such values too. An
exception of acktree is stored under its public name (``acktree.MisuseError``).

Not durable, and free to change: ``plan-*`` and ``marks/``, which exist as long as a run; ``control.json`` and
``snapshot.json``, for operators; ``log-levels.json``; ``driver.log``. ``traces.sqlite`` and
``history.sqlite`` have own versions. ``tests/golden`` has samples, as bytes, of the formats that are neither
JSON, text nor Arrow.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from acktree.errors import CheckpointError

VERSION: Final = 8
"""The version of the layout and of message ids. Earlier ones were before 0.1.0, and are not read."""
FRESH: Final[Mapping[str, Any]] = {
    "version": VERSION,
    "generation": 1,
    "first_batch": 0,
    "begins_after": -1,
    "acker_from": 0,
    "lost_through": -1,
    "memory": False,
}
"""The facts of a new checkpoint, except salt, partitions, run, reserved sequences, shape, and whether bolts
remember in files."""


def check_version(facts: Mapping[str, Any], place: Path | str) -> None:
    """Check that a checkpoint has a version that this release reads.

    Raises:
        CheckpointError: It has another.
    """
    version = facts.get("version")
    if version != VERSION:
        raise CheckpointError(
            f"this checkpoint has version {version}, and this acktree reads {VERSION}",
            str(place),
            "let the acktree that wrote it finish what is open, and give the topology a new checkpoint",
        )
