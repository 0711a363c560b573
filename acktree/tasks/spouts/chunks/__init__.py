"""The chunks of open messages that a spout task keeps, and their recovery."""
