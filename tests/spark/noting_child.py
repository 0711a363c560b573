"""A bolt as a child process: it notes each tuple in a file of a folder, then acks it. A script."""

import json
import os
import sys
import time

_WORK_SECS = 0.002


def read() -> dict:
    text = ""
    for line in sys.stdin:
        if line == "end\n":
            return json.loads(text)
        text += line
    sys.exit()


def send(**message: object) -> None:
    sys.stdout.write(f"{json.dumps(message)}\nend\n")
    sys.stdout.flush()


def main(folder: str) -> None:
    read()
    effects = os.open(f"{folder}/effects", os.O_CREAT | os.O_WRONLY | os.O_APPEND)
    send(pid=os.getpid())
    while True:
        message = read()
        if isinstance(message, list):
            continue
        if message["stream"] == "__heartbeat":
            send(command="sync")
        else:
            time.sleep(_WORK_SECS)
            os.write(effects, f"{message['tuple'][0]}\n".encode())
            send(command="ack", id=message["id"])


if __name__ == "__main__":
    main(sys.argv[1])
