"""Puts the durable parts of a run together, as they were after the last commit; without Spark."""

from __future__ import annotations

from acktree.checkpoint.acker_log import DurableAcker
from acktree.checkpoint.commit_log import CommitLog, Participant
from acktree.checkpoint.folder import Checkpoint
from acktree.checkpoint.inbox import FileInbox
from acktree.checkpoint.journal import Journal
from acktree.checkpoint.memory_log import MemoryLog
from acktree.driver.run import Run
from acktree.driver.spout_threads import Threads

__all__ = ["journal_of", "recovered_log"]


def journal_of(held: Checkpoint, inbox: FileInbox, threads: Threads) -> Journal:
    """The verdicts of messages that only the inbox has."""
    return Journal(
        held.verdicts, threads.delivered_through, lambda: inbox.oldest_kept, held.files,
        lambda: inbox.newest_positions,
    )  # fmt: skip


def recovered_log(held: Checkpoint, run: Run, acker: DurableAcker | None) -> CommitLog:
    """The commit log, whose participants have their state as of the last commit."""
    # The acker judges before anything is written; what it decided is in the outcome.
    candidates: list[Participant | None] = [
        acker, run.keys, run.gates, run.journal, _memory_log_of(held), run.results.metrics,
        run.results.totals,
    ]  # fmt: skip
    participants = [each for each in candidates if each is not None]
    commits = CommitLog(held.folder, participants, held.files, held.run)
    commits.recover(held.last_committed())
    held.refuse_later_run(max(commits.last_run, run.inbox.last_run))
    if run.journal is not None:
        run.inbox.drop_before(run.journal.first_entry)
    return commits


def _memory_log_of(held: Checkpoint) -> MemoryLog | None:
    """What bolts remember, where that is in files; None if none has ever remembered."""
    if held.state is None or held.state_from is None:
        return None
    return MemoryLog(held.state, held.state_from, held.files)
