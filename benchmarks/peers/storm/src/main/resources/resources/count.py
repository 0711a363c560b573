"""The count as a bolt of Storm's multilang, with Storm's own storm.py."""

import storm


class Count(storm.BasicBolt):  # type: ignore[misc]  # storm.py lies beside this file where it runs
    """Counts one word a call."""

    def initialize(self, conf: object, context: object) -> None:
        """Begin with nothing."""
        self.counts: dict[str, int] = {}

    def process(self, tup: storm.Tuple) -> None:
        """Emits nothing."""
        word = tup.values[0]
        self.counts[word] = self.counts.get(word, 0) + 1


Count().run()
