"""The page with something to see: two topologies on Spark, until Ctrl-C.

``python -m examples.page.page`` prints where the page is, and takes the options of ``acktree ui``. ``poison``
has messages that fail, with dead letters; a bolt of ``forgets`` does not ack some, which time out.
``tests/browser`` looks at the same.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

NAMES = ("poison", "forgets")
ACKTREE = (sys.executable, "-m", "acktree")
SETTINGS = {"message_timeout_secs": 10, "partitions": 2, "trace_sample_rate": 0.1}
STOP_SECS = 20


@contextmanager
def topologies(folder: Path, environment: Mapping[str, str] | None = None) -> Iterator[None]:
    """Both topologies for the length of the block, as processes with their checkpoints in the folder."""
    code, settings = Path(__file__).with_name("topologies.py"), []
    for key, value in SETTINGS.items():
        settings += ["-c", f"{key}={value}"]
    try:
        submitting = [
            subprocess.Popen(  # noqa: S603  # written here
                [*ACKTREE, "submit", f"{code}:{name}", "--checkpoint", str(folder / name), *settings],
                env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            )
            for name in NAMES
        ]  # fmt: skip
        said = [each.communicate()[0] for each in submitting]
        if any(each.returncode for each in submitting):
            raise RuntimeError("\n".join(said))
        yield
    finally:
        for name in NAMES:  # one that was killed from the page is not running any more: nothing to do
            command = [*ACKTREE, "kill", str(folder / name), "-w", "0"]
            subprocess.run(command, env=environment, check=False, capture_output=True)  # noqa: S603


@dataclass(frozen=True)
class PageProcess:
    """An ``acktree ui`` that runs."""

    url: str
    token: str
    process: subprocess.Popen[str]

    @property
    def address(self) -> str:
        """What to open in a browser."""
        return f"{self.url}/?token={self.token}"


@contextmanager
def page(*options: str, environment: Mapping[str, str] | None = None) -> Iterator[PageProcess]:
    """The page's process for the length of the block."""
    command = [*ACKTREE, "ui", "--json", *options]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as process:  # noqa: S603
        try:
            assert process.stdout is not None
            first = process.stdout.readline()
            if not first:
                raise RuntimeError(f"acktree ui ended with code {process.wait()}; its reason is above")
            yield PageProcess(**json.loads(first), process=process)
        finally:
            process.terminate()
            try:
                process.wait(STOP_SECS)
            except subprocess.TimeoutExpired:
                process.kill()


def _stop(_number: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def main() -> None:
    """Start all, wait for Ctrl-C or SIGTERM, stop all."""
    if {"-h", "--help"} & set(sys.argv[1:]):
        print(__doc__, flush=True)
        sys.exit(subprocess.run([*ACKTREE, "ui", "--help"], check=False).returncode)  # noqa: S603
    signal.signal(signal.SIGTERM, _stop)
    signal.signal(signal.SIGINT, _stop)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="acktree-page-")))
        try:
            shown = stack.enter_context(page(*sys.argv[1:]))  # first: it refuses wrong options at once
            print("Starting two topologies on Spark; this takes half a minute.", flush=True)
            stack.enter_context(topologies(folder))
            print(f"the page: {shown.address}\nCtrl-C stops it and both topologies.", flush=True)
            shown.process.wait()
        except RuntimeError as error:
            sys.exit(str(error))
        except KeyboardInterrupt:
            print("Stopping.", flush=True)


if __name__ == "__main__":
    main()
