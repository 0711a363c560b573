"""The one streaming query: source, levels, sink.

Planned in the driver; operators run in Python workers, the sink in the driver. The source runs in a process
of Spark's beside the driver. Judges no message: ``driver`` and ``tasks`` do.
"""
