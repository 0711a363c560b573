"""A stand-in for Kestrel, which nobody builds any more: ``python kestrel.py PORT JOURNAL``.

Written from Kestrel's guide: the memcache protocol with reliable reads (``/open``, ``/close``, ``/abort``). A
connection holds one open item; when it ends, or aborts, the item goes back to the head. Queues are made when
they are named. What was stored is in the journal before it is answered, and what was confirmed too.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections import defaultdict, deque
from pathlib import Path


class Queues:
    """All items, in memory and in the journal."""

    def __init__(self, journal: Path):
        self.items: dict[str, deque[tuple[int, bytes]]] = defaultdict(deque)
        self.last = 0
        if journal.exists():
            self._replay(journal)
        self.journal = journal.open("a")
        self.came = asyncio.Event()

    def _replay(self, journal):
        for line in journal.read_text().splitlines():
            queue, number, data = json.loads(line)
            self.last = max(self.last, number)
            if data is not None:
                self.items[queue].append((number, bytes.fromhex(data)))
            elif number:
                kept = [item for item in self.items[queue] if item[0] != number]
                self.items[queue] = deque(kept)
            else:
                self.items.pop(queue, None)

    def _write(self, queue, number, data=None):
        self.journal.write(json.dumps([queue, number, data]) + "\n")
        self.journal.flush()

    def add(self, queue, data):
        self.last += 1
        self._write(queue, self.last, data.hex())
        self.items[queue].append((self.last, data))
        self.came.set()
        self.came = asyncio.Event()

    def done(self, queue, number):
        self._write(queue, number)

    def drop(self, queue):
        if self.items.pop(queue, None) is not None:
            self._write(queue, 0)

    def back(self, queue, item):
        if queue in self.items:
            self.items[queue].appendleft(item)
            self.came.set()
            self.came = asyncio.Event()

    async def take(self, queue, wait_secs):
        deadline = asyncio.get_running_loop().time() + wait_secs
        while not self.items[queue]:
            left = deadline - asyncio.get_running_loop().time()
            if left <= 0:
                return None
            try:
                await asyncio.wait_for(self.came.wait(), left)
            except TimeoutError:
                return None
        return self.items[queue].popleft()


class Client:
    """One connection."""

    def __init__(self, queues, reader, writer):
        self.queues, self.reader, self.writer = queues, reader, writer
        self.open = None

    async def serve(self):
        try:
            while line := await self.reader.readline():
                await self._answer(line.decode().split())
        except ConnectionError:
            pass
        finally:
            self._abort()
            self.writer.close()

    async def _answer(self, words):
        match [words[0].upper(), *words[1:]] if words else []:
            case ["SET", queue, _, _, size]:
                data = await self.reader.readexactly(int(size) + 2)
                self.queues.add(queue, data[:-2])
                self._say("STORED")
            case ["GET", name]:
                await self._get(*name.split("/"))
            case ["DELETE", queue]:
                self.queues.drop(queue)
                self._say("DELETED")
            case ["STATS"]:
                for queue, items in self.queues.items.items():
                    self._say(f"STAT queue_{queue}_items {len(items)}")
                self._say("END")
            case ["VERSION"]:
                self._say("VERSION stand-in")
            case _:
                self._say("CLIENT_ERROR unknown command")
        await self.writer.drain()

    async def _get(self, queue, *options):
        wait_secs = sum(int(each[2:]) / 1000 for each in options if each.startswith("t="))
        if "abort" in options:
            self._abort()
        if "close" in options and self.open is not None:
            self.queues.done(self.open[0], self.open[1][0])
            self.open = None
        if "open" not in options and {"abort", "close"} & {*options}:
            self._say("END")
            return
        if self.open is not None:
            self._say("CLIENT_ERROR Close current item first.")
            raise ConnectionError
        item = await self.queues.take(queue, wait_secs)
        if item is not None:
            if "open" in options:
                self.open = (queue, item)
            elif "peek" in options:
                self.queues.back(queue, item)
            else:
                self.queues.done(queue, item[0])
            self.writer.write(b"VALUE %s 0 %d\r\n%s\r\n" % (queue.encode(), len(item[1]), item[1]))
        self._say("END")

    def _abort(self):
        if self.open is not None:
            self.queues.back(*self.open)
            self.open = None

    def _say(self, line):
        self.writer.write(f"{line}\r\n".encode())


async def main(port, journal):
    queues = Queues(Path(journal))
    server = await asyncio.start_server(
        lambda *streams: Client(queues, *streams).serve(), "127.0.0.1", int(port)
    )
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
