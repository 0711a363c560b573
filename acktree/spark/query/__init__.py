"""The one streaming query: source, levels, sink.

Planned in the driver; operators run in Python workers, the sink in the driver.
"""
