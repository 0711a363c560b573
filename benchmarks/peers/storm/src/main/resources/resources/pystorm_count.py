"""The count as a bolt of pystorm, the library below streamparse."""

from pystorm import Bolt, Tuple


class Count(Bolt):  # type: ignore[misc]  # pystorm is in an environment of its own
    """Counts one word a call."""

    def initialize(self, conf: object, context: object) -> None:
        """Begin with nothing."""
        self.counts: dict[str, int] = {}

    def process(self, tup: Tuple) -> None:
        """Emits nothing."""
        word = tup.values[0]
        self.counts[word] = self.counts.get(word, 0) + 1


Count().run()
