"""The split as a bolt of pystorm, the library below streamparse."""

from pystorm import Bolt, Tuple


class Split(Bolt):  # type: ignore[misc]  # pystorm is in an environment of its own
    """A word a tuple."""

    def process(self, tup: Tuple) -> None:
        """Anchoring and acking happen by themselves, and no emit waits for task ids."""
        for word in tup.values[0].split():
            self.emit([word])


Split().run()
