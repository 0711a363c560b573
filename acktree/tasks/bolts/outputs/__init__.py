"""From emitted tuples to the wire rows of a level."""
