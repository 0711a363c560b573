"""A bolt in Python without a library: the words of a sentence, with the number of sentences so far."""

import json
import os
import sys
from collections import Counter
from pathlib import Path
from typing import Any

sentences = Counter[str]()


def read_message() -> dict[str, Any]:
    """The next message of acktree; it ends this process when it closes the input."""
    text = ""
    for line in sys.stdin:
        if line == "end\n":
            message: dict[str, Any] = json.loads(text)
            return message
        text += line
    sys.exit()


def send(**message: object) -> None:
    """Send a message to acktree."""
    sys.stdout.write(f"{json.dumps(message)}\nend\n")
    sys.stdout.flush()


def split(name: str, sentence: str) -> None:
    """Emit the words of a sentence and ack it; an empty one fails."""
    words = sentence.split()
    if not words:
        send(command="fail", id=name)
        return
    sentences["all"] += 1
    for word in words:
        send(command="emit", anchors=[name], tuple=[word, sentences["all"]], need_task_ids=False)
    send(command="ack", id=name)


if __name__ == "__main__":
    Path(read_message()["pidDir"], str(os.getpid())).touch()
    send(pid=os.getpid())
    while True:
        message = read_message()
        if message["stream"] == "__heartbeat":
            send(command="sync")
        elif message["stream"] == "__tick":
            send(command="log", msg=f"{sentences['all']} sentences", level=2)
        else:
            split(message["id"], message["tuple"][0])
