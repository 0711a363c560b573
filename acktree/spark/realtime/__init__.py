"""The resident query of Spark's real-time mode: a micro-batch without a Spark job is called an epoch.

Experimental: ``Config(real_time=True)``. ``epochs`` and ``frames`` are pure. ``connections``, ``session``,
``query`` and ``drive`` run in the driver, ``level`` in workers. ``java`` has the source and the shuffle
manager, which Spark's Janino compiles. ``drive`` commits, with the sink and the logs of micro-batches.
"""
