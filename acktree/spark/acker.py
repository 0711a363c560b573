"""The acker's host on Spark: in the driver, where verdicts are told, with a log of its own.

Written before the sink returns, so before Spark commits the micro-batch: what stands here of one that was
never committed is thrown away at a restart, and the micro-batch that runs again finds the acker as it was.

::

    acker/000000000042.change    what a micro-batch changed in the ledger; none where it left it as it was
    acker/000000000040.whole     the ledger after a micro-batch; what is older goes at the next write
    payloads/000000000042        the rows of a DataFrame that a micro-batch left open, where there is a retry
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final

import numpy as np
import pyarrow as pa

from acktree.core.frames import WireRow
from acktree.core.ids import Int64s
from acktree.core.ledger import Ledger
from acktree.core.packing import pack, unpack
from acktree.core.values import batch_to_bytes
from acktree.tasks.acker_task import Acker, Verdicts
from acktree.tasks.outputs import Payload, payload_of_wire
from acktree.tasks.plan import Plan

_SMALL: Final = 1 << 20
"""Changes of so many bytes are worth no new whole, however little is open."""


class DurableAcker:
    """The acker of a checkpoint."""

    def __init__(self, plan: Plan, folder: Path, last_committed: int) -> None:
        """Take up what an earlier driver left.

        Args:
            folder: The checkpoint's folder.
            last_committed: The last micro-batch that Spark has committed; the one after it runs again.
        """
        self._log = _Log(folder / "acker", last_committed)
        self._acker = Acker(plan, self._log.recover(plan.timeout_ms))
        self._payloads = _Payloads(folder / "payloads", last_committed, self._acker.ledger)

    def forget_before(self, first_sequences: Mapping[int, int]) -> None:
        """Begin a run; see :meth:`Acker.forget_before`."""
        self._acker.forget_before(first_sequences)

    def settle(
        self,
        batch_id: int,
        deltas: Iterable[WireRow],
        payloads: Iterable[WireRow],
        clock_ms: int,
        *,
        is_first: bool,
    ) -> tuple[Verdicts, list[Payload]]:
        """Judge a micro-batch, durably; with what failed rows of DataFrames held."""
        verdicts, change = self._acker.settle(deltas, clock_ms, is_first=is_first)
        arrived = [payload_of_wire(row.head, row.body) for row in payloads]
        failed = self._payloads.settle(batch_id, arrived, verdicts)
        if change:
            self._log.write(batch_id, change, self._acker.ledger)
        return verdicts, failed


class _Log:
    """Changes since the last whole ledger, a file for each micro-batch that changed something."""

    def __init__(self, folder: Path, last_committed: int) -> None:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._folder = folder
        self._last_committed = last_committed
        self._written = 0
        self._superseded: list[Path] = []

    def recover(self, timeout_ms: int | None) -> Ledger:
        ledger = Ledger(timeout_ms)
        files: list[Path] = []
        for file in sorted(self._folder.iterdir()):
            if file.name.startswith("new-") or int(file.stem) > self._last_committed:
                file.unlink()
            elif file.suffix == ".whole":
                ledger = Ledger(timeout_ms, file.read_bytes())
                self._superseded, files = [*self._superseded, *files], [file]
            else:
                blob = file.read_bytes()
                ledger.replay(blob)
                self._written += len(blob)
                files.append(file)
        self._files = files
        return ledger

    def write(self, batch_id: int, change: bytes, ledger: Ledger) -> None:
        for file in self._superseded:  # by a micro-batch before this one, which is committed by now
            file.unlink(missing_ok=True)
        self._superseded = []
        self._written += len(change)
        is_whole = self._written > max(_SMALL, 2 * ledger.nbytes)
        file = self._folder / f"{batch_id:012d}.{'whole' if is_whole else 'change'}"
        new = self._folder / f"new-{batch_id}"
        new.touch(mode=0o600)
        new.write_bytes(ledger.to_bytes() if is_whole else change)
        new.rename(file)
        if is_whole:
            self._superseded, self._files, self._written = self._files, [], 0
        self._files.append(file)


class _Payloads:
    """What rows of DataFrames held, kept while they are open: their source has moved on."""

    def __init__(self, folder: Path, last_committed: int, ledger: Ledger) -> None:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._folder = folder
        self._open: dict[Path, Int64s] = {}
        self._closed: list[Path] = []
        for file in sorted(folder.iterdir()):
            if file.name.startswith("new-") or int(file.name) > last_committed:
                file.unlink()
            else:
                self._keep(file, ledger.still_open(_read(file)[0]))

    def settle(self, batch_id: int, arrived: Sequence[Payload], verdicts: Verdicts) -> list[Payload]:
        """Take in what came, let go of what was judged, give back what failed."""
        for file in self._closed:  # by a micro-batch before this one, which is committed by now
            file.unlink(missing_ok=True)
        self._closed = []
        lost = np.concatenate((verdicts.failed.roots, verdicts.timed_out.roots))
        judged = np.concatenate((verdicts.acked.roots, lost))
        failed = [part for payload in arrived for part in _those(payload, np.isin(payload[0], lost))]
        for file, roots in list(self._open.items()):
            if np.isin(roots, lost).any():
                values = _read(file)
                failed += _those(values, np.isin(values[0], lost) & np.isin(values[0], roots))
            self._keep(file, roots[~np.isin(roots, judged)])
        left = [part for payload in arrived for part in _those(payload, ~np.isin(payload[0], judged))]
        if left:
            roots = np.concatenate([part[0] for part in left])
            table = pa.Table.from_batches([part[1] for part in left]).combine_chunks()
            file, new = self._folder / f"{batch_id:012d}", self._folder / f"new-{batch_id}"
            new.touch(mode=0o600)
            new.write_bytes(pack(roots, batch_to_bytes(table.to_batches()[0])))
            new.rename(file)
            self._keep(file, roots)
        return failed

    def _keep(self, file: Path, roots: Int64s) -> None:
        self._open.pop(file, None)
        if len(roots):
            self._open[file] = roots
        else:
            self._closed.append(file)


def _read(file: Path) -> Payload:
    head, body = unpack(file.read_bytes())
    return payload_of_wire(pack(head), body)


def _those(payload: Payload, wanted: np.ndarray[tuple[int], np.dtype[np.bool_]]) -> list[Payload]:
    roots, values = payload
    which = np.flatnonzero(wanted)
    return [(roots[which], values.take(pa.array(which)))] if len(which) else []
