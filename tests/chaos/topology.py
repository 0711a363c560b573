"""The topology under attack: a fan-out, a fields grouping, a memory, a join that holds tuples.

::

    queue, positions ─► split ─► work ─► join ─► notes    join: three tuples of a lane, or what a tick finds
                          └────► tally                    tally: remembers every tuple it was given

``queue`` has a broker that redelivers, ``positions`` a log that it reads by number. Each bolt leaves an
effect for each tuple that it had executed.
"""

from __future__ import annotations

import sys
import time
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final, cast

from acktree import BasicBolt, Bolt, KeyValueState, Retry, Spout, Topology, TopologyBuilder
from acktree.bolt import BasicOutputCollector, OutputCollector
from acktree.config import Config
from acktree.core.data.context import TaskContext
from acktree.core.data.tuples import Tuple
from acktree.core.tracking.verdicts import Failure
from acktree.spout import SpoutOutputCollector
from tests.chaos.effects import CORRUPT, leave, write_memory
from tests.chaos.message_queue import Message, MessageQueue, What
from tests.chaos.nature import PROBE, Temper, nature_of, payload_of

if TYPE_CHECKING:
    from acktree.spout import MessageId

MOST_FAILURES: Final = 6
"""The number of failures in a row at which a message is dead."""
SPOUT_TASKS: Final = {"queue": 2, "positions": 1}
MESSAGE: Final = ["number", "delivery", "failures", "payload"]
PART: Final = ["number", "delivery", "attempt", "failures", "part", "lane", "payload"]
_JOINED: Final = 3
_WORK_SECS: Final = 0.002
_SAID_EVERY: Final = 37


class _Told(Spout):
    """What both spouts have in common: verdicts go to the queue as they are delivered."""

    def __init__(self, file: Path, run: int):
        self.file, self.run = file, run

    def open(self, config: Config, context: TaskContext, collector: SpoutOutputCollector) -> None:
        self.collector, self.task = collector, context.task_index
        self.tasks = len(context.task_ids(context.component_id))
        self.queue = MessageQueue(self.file, self.run)

    def emit(self, message: Message) -> None:
        number, delivery = message.number, message.delivery
        values = [number, delivery, message.failures, payload_of(number)]
        self.collector.emit(values, message_id=(number, delivery))

    def ack_batch(self, message_ids: Sequence[MessageId]) -> None:
        self.queue.ack(cast("Sequence[tuple[int, int]]", message_ids))

    def fail(self, message_id: MessageId, failure: Failure) -> None:
        number, delivery = cast("tuple[int, int]", message_id)
        why = f"{failure.kind}:{failure.cause}:{failure.reason:.200}"
        if failure.final:
            self.queue.record(number, delivery, why)
        else:
            self.queue.fail(number, delivery, why, MOST_FAILURES)

    def close(self) -> None:
        self.queue.close()


class QueueSpout(_Told):
    """Drinks from the queue; what was open when the driver died is redelivered."""

    outputs = {"default": MESSAGE, "probe": ["number"]}

    def open(self, config: Config, context: TaskContext, collector: SpoutOutputCollector) -> None:
        super().open(config, context, collector)
        self.waiting: deque[Message] = deque()
        self.queue.reconnect(self.task, self.tasks)
        self.queue.note(What.OPENED)

    def next_tuple(self) -> None:
        if not self.waiting:
            self.waiting.extend(self.queue.take(self.task, self.tasks, 20))
        if self.waiting:
            message = self.waiting.popleft()
            if message.number == PROBE:
                self.collector.emit([PROBE], message_id=(PROBE, message.delivery), stream="probe")
            else:
                self.emit(message)


class PositionSpout(_Told):
    """Reads the messages of odd numbers in their order; acktree keeps what is open."""

    outputs = MESSAGE
    redelivers = False
    remembers = ["position"]

    def __init__(self, file: Path, run: int):
        super().__init__(file, run)
        self.position = 1

    def open(self, config: Config, context: TaskContext, collector: SpoutOutputCollector) -> None:
        super().open(config, context, collector)
        self.queue.note(What.OPENED)

    def next_tuple(self) -> None:
        message = self.queue.take_at(self.position)
        if message is not None:
            self.emit(message)
            self.position += 2


class _Leaving(BasicBolt):
    """A bolt that leaves an effect."""

    def __init__(self, effects: Path):
        self.effects = effects

    def prepare(self, config: Config, context: TaskContext) -> None:
        self.name = context.component_id

    def left(self, tup: Tuple) -> None:
        leave(self.effects, self.name, tup["number"], tup["delivery"], tup["attempt"], tup["part"])


def _is_first_try(tup: Tuple) -> bool:
    return bool(tup["attempt"] == 1 and tup["failures"] == 0)


def _check(effects: Path, tup: Tuple) -> None:
    """What travelled is what was emitted, and says which attempt it is of."""
    if tup["payload"] != payload_of(tup["number"]) or tup.attempt != tup["attempt"]:
        leave(effects, CORRUPT, tup["number"], tup["delivery"], tup["attempt"], tup["part"])
        raise ValueError(f"{tup!r:.200} is not what was emitted")


class Split(_Leaving):
    """A message as its parts."""

    outputs = PART

    def execute(self, tup: Tuple, collector: BasicOutputCollector) -> None:
        number, delivery, failures, payload = tup.values
        for part, lane in enumerate(nature_of(number).lanes):
            collector.emit([number, delivery, tup.attempt, failures, part, lane, payload])
        leave(self.effects, self.name, number, delivery, tup.attempt)


class Work(_Leaving):
    """Takes its time, talks now and then, and raises where the message is of that kind."""

    outputs = PART

    def execute(self, tup: Tuple, collector: BasicOutputCollector) -> None:
        _check(self.effects, tup)
        time.sleep(_WORK_SECS)
        number = tup["number"]
        temper = nature_of(number).temper
        if number % _SAID_EVERY == 0:
            print(f"message {number}, as people will print", file=sys.stderr, flush=True)  # noqa: T201
        if temper is Temper.POISON or (temper is Temper.FLAKY and tup["part"] == 0 and _is_first_try(tup)):
            raise ValueError(f"{number} is {temper}")
        collector.emit(tup.values)
        self.left(tup)


class Tally(_Leaving):
    """Remembers every tuple that it was given, in two books."""

    outputs = []
    remembers = ["seen", "by_lane"]

    def prepare(self, config: Config, context: TaskContext) -> None:
        super().prepare(config, context)
        self.task = context.task_id
        self.seen: KeyValueState[tuple[int, int], list[tuple[int, int]]] = KeyValueState()
        self.by_lane: dict[int, int] = {}

    def execute(self, tup: Tuple, collector: BasicOutputCollector) -> None:
        if tup.stream == "probe":
            self.write_totals()
            return
        _check(self.effects, tup)
        self.left(tup)  # before it is remembered: what is remembered without an effect was never executed
        key = tup["number"], tup["part"]
        self.seen[key] = [*self.seen.get(key, []), (tup["delivery"], tup["attempt"])]
        self.by_lane[tup["lane"]] = self.by_lane.get(tup["lane"], 0) + 1

    def write_totals(self) -> None:
        tuples = [
            [number, *which, part, seen.count(which)]
            for (number, part), seen in self.seen.items()
            for which in dict.fromkeys(seen)
        ]
        write_memory(self.effects.parent / "memory", self.task, tuples, self.by_lane)


class Join(Bolt):
    """Holds the tuples of a lane until it has three, or a second has passed, and makes one of them."""

    outputs = ["lane", "members"]
    remembers = ["held"]
    tick_secs = 1

    def __init__(self, effects: Path):
        self.effects = effects

    def prepare(self, config: Config, context: TaskContext, collector: OutputCollector) -> None:
        self.collector = collector
        self.held: dict[int, list[Tuple]] = {}

    def execute(self, tup: Tuple) -> None:
        _check(self.effects, tup)
        leave(self.effects, "join", tup["number"], tup["delivery"], tup["attempt"], tup["part"])
        is_forgotten = nature_of(tup["number"]).temper is Temper.FORGOTTEN
        if is_forgotten and tup["part"] == 0 and _is_first_try(tup):
            return
        held = self.held.setdefault(tup["lane"], [])
        held.append(tup)
        if len(held) == _JOINED:
            self.join(tup["lane"])

    def tick(self, tup: Tuple) -> None:
        for lane in list(self.held):
            self.join(lane)

    def join(self, lane: int) -> None:
        held = self.held.pop(lane)
        members = [
            [tup["number"], tup["delivery"], tup["attempt"], tup["part"], _is_first_try(tup)] for tup in held
        ]
        self.collector.emit([lane, members], anchors=held)
        for tup in held:
            self.collector.ack(tup)


class Notes(_Leaving):
    """Writes down what was joined; one sour message spoils it for all."""

    outputs = []

    def execute(self, tup: Tuple, collector: BasicOutputCollector) -> None:
        for number, *_, is_first_try in tup["members"]:
            if nature_of(number).temper is Temper.SOUR and is_first_try:
                raise ValueError(f"{number} is sour")
        for number, delivery, attempt, part, _ in tup["members"]:
            leave(self.effects, self.name, number, delivery, attempt, part)


def chaos_topology(folder: Path, run: int, *, queue_retries: bool) -> Topology:
    """The topology over the queue in a folder.

    Args:
        queue_retries: Whether acktree tries failed messages of the queue again; else the queue does.
    """
    queue, effects = folder / "queue.sqlite", folder / "effects"
    retry = Retry(max_attempts=MOST_FAILURES, backoff_secs=(0.2, 2))
    builder = TopologyBuilder("chaos")
    builder.set_spout(
        "queue", QueueSpout(queue, run), SPOUT_TASKS["queue"], retry=retry if queue_retries else None
    )
    builder.set_spout("positions", PositionSpout(queue, run), SPOUT_TASKS["positions"], retry=retry)
    split = builder.set_bolt("split", Split(effects), 2)
    split.shuffle_grouping("queue").shuffle_grouping("positions")
    builder.set_bolt("work", Work(effects), 2).shuffle_grouping("split")
    tally = builder.set_bolt("tally", Tally(effects), 2)
    tally.fields_grouping("split", ["lane"]).all_grouping("queue", stream="probe")
    builder.set_bolt("join", Join(effects), 2).fields_grouping("work", ["lane"])
    builder.set_bolt("notes", Notes(effects), 2).fields_grouping("join", ["lane"])
    return builder.create_topology()
