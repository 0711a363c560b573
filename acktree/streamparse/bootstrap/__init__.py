"""Makes a project: a word count, in the layout of streamparse's own."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from acktree import ConfigError

__all__ = ["quickstart"]

_FILES: Final = {
    ".gitignore": "__pycache__/\n*.pyc\n_build/\n_resources/\nlogs/\ncheckpoints/\n",
    "README.md": """\
# {name}

    acktree sparse run --local -t 5                              # without Spark
    acktree sparse run --checkpoint checkpoints/{name}           # on Spark: counts survive a restart
    acktree sparse submit --checkpoint checkpoints/{name}        # in a process of its own
    acktree sparse stats && acktree sparse tail && acktree sparse kill
""",
    "config.json": """\
{{
    "serializer": "json",
    "topology_specs": "topologies/",
    "virtualenv_specs": "virtualenvs/",
    "envs": {{
        "prod": {{
            "user": "",
            "nimbus": "",
            "workers": [],
            "log": {{"path": "", "level": "info"}},
            "options": {{}}
        }}
    }}
}}
""",
    "src/bolts/__init__.py": "",
    "src/bolts/wordcount.py": """\
from collections import Counter

from streamparse import Bolt


class WordCountBolt(Bolt):
    outputs = ["word", "count"]

    def initialize(self, conf, ctx):
        self.counter = Counter()
        self.total = 0

    def _increment(self, word, inc_by):
        self.counter[word] += inc_by
        self.total += inc_by

    def process(self, tup):
        word = tup.values[0]
        self._increment(word, 10 if word == "dog" else 1)
        if self.total % 1000 == 0:
            self.logger.info(f"counted [{{self.total:,}}] words")
        self.emit([word, self.counter[word]])
""",
    "src/spouts/__init__.py": "",
    "src/spouts/words.py": """\
from itertools import cycle

from streamparse import Spout


class WordSpout(Spout):
    outputs = ["word"]

    def initialize(self, stormconf, context):
        self.words = cycle(["dog", "cat", "zebra", "elephant"])

    def next_tuple(self):
        word = next(self.words)
        self.emit([word])
""",
    "topologies/wordcount.py": '''\
"""
Word count topology
"""

from streamparse import Grouping, Topology

from bolts.wordcount import WordCountBolt
from spouts.words import WordSpout


class WordCount(Topology):
    word_spout = WordSpout.spec()
    count_bolt = WordCountBolt.spec(inputs={{word_spout: Grouping.fields("word")}}, par=2)
''',
    "virtualenvs/wordcount.txt": "",
}


def quickstart(project_name: str) -> None:
    """Make a project in a new folder.

    Raises:
        ConfigError: The folder is there already, or cannot be made.
    """
    folder = Path(project_name)
    try:
        folder.mkdir(parents=True)
    except OSError as error:
        raise ConfigError(
            f"the project cannot be made: {error.strerror}", str(folder), "give a name that is not taken"
        ) from error
    for name, text in _FILES.items():
        file = folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text.format(name=folder.name) if text else "", encoding="utf-8")
        print(f"    create  {file}")
    print(f"\nRun your topology:\n\n    cd {folder}\n    acktree sparse run --local -t 5")
