"""Storm topologies in Python on Spark Structured Streaming, with a verdict for every message."""
