"""The split as a bolt of Storm's multilang, with Storm's own storm.py."""

import storm


class Split(storm.BasicBolt):  # type: ignore[misc]  # storm.py lies beside this file where it runs
    """A word a tuple."""

    def process(self, tup: storm.Tuple) -> None:
        """Anchoring and acking happen by themselves."""
        for word in tup.values[0].split():
            storm.emit([word])


Split().run()
