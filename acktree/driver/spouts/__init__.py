"""The spout tasks of a run on their threads."""
