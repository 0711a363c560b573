"""A child that does to its parent what the values of a tuple say. Run as a script; standard library alone."""

import json
import os
import signal
import sys
import time
from pathlib import Path


def read() -> dict:
    text = ""
    for line in sys.stdin:
        if line == "end\n":
            return json.loads(text)
        text += line
    sys.exit()


def put(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()


def send(**message: object) -> None:
    put(f"{json.dumps(message)}\nend\n")


def read_tasks() -> list:
    """The next list; what comes before it waits for its turn."""
    while not isinstance(message := read(), list):
        WAITING.append(message)
    return message


def fork_that_keeps_the_pipe(name: str) -> None:
    if os.fork() == 0:
        time.sleep(1000)
    os._exit(6)


HELD: list[str] = []
WAITING: list[dict] = []
DEEDS = {
    "exit": lambda name: (sys.stderr.write("the reason\n"), sys.exit(3)),
    "exit with a flood": lambda name: (sys.stderr.write("x\n" * 1_000_000), sys.exit(4)),
    "kill": lambda name: os.kill(os.getpid(), signal.SIGKILL),
    "silence": lambda name: time.sleep(1_000),
    "stop": lambda name: os.kill(os.getpid(), signal.SIGSTOP),
    "no newline": lambda name: [put("x" * 1_000_000) for _ in range(100)],
    "no JSON": lambda name: put("hello\nend\n"),
    "half a message": lambda name: (put('{"command": "ack"'), sys.exit(5)),
    "close": lambda name: (os.close(1), time.sleep(1000)),
    "fork": fork_that_keeps_the_pipe,
    "unknown ack": lambda name: send(command="ack", id="777777"),
    "unknown anchor": lambda name: send(command="emit", tuple=["x"], anchors=["777777"]),
    "no command": lambda name: send(hello="there"),
    "no values": lambda name: send(command="emit"),
    "another stream": lambda name: send(command="emit", tuple=["x"], stream="other"),
    "print": lambda name: (put("a debugging line\n"), send(command="ack", id=name)),
    "ack twice": lambda name: [send(command="ack", id=name) for _ in "12"],
    "unknown command": lambda name: (send(command="dance"), send(command="ack", id=name)),
    "fail": lambda name: send(command="fail", id=name),
    "hold": HELD.append,
    "release": lambda name: [send(command="ack", id=each) for each in [*HELD, name]],
    "late": lambda name: (send(command="log", msg="later"), HELD.append(name)),
    "metrics": lambda name: (
        send(command="metrics", name="lines", params=None),
        send(command="metrics", name="level", params=7),
        send(command="ack", id=name),
    ),
    "ask for tasks": lambda name: (
        send(command="emit", tuple=["asked"], anchors=[name]),
        send(command="emit", tuple=[read_tasks()], anchors=[name]),
        read_tasks(),
        send(command="ack", id=name),
    ),
}


def main() -> None:
    set_up = read()
    if Path("no handshake").exists():
        Path("no handshake").unlink()
        put(Path("never").read_text())
        time.sleep(1000)
    send(pid=os.getpid())
    with Path("started").open("a") as file:
        file.write(f"{os.getpid()}\n")
    assert set_up["context"]["streams"] == ["default"]
    while True:
        message = WAITING.pop(0) if WAITING else read()
        name = message["id"]
        if message["stream"] == "__heartbeat":
            send(command="sync")
            if Path("late").exists():
                time.sleep(0.2)
                [send(command="ack", id=each) for each in HELD]
        elif message["stream"] == "__tick":
            [send(command="ack", id=each) for each in HELD]
        elif (deed := message["tuple"][0]) in DEEDS:
            DEEDS[deed](name)
        else:
            send(command="emit", tuple=[deed], anchors=name, need_task_ids=False)
            send(command="ack", id=name)


if __name__ == "__main__":
    main()
