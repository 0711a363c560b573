"""The resident query of Spark's real-time mode: a micro-batch without a Spark job is called an epoch.

Experimental, and not behind a setting yet. ``epochs`` and ``frames`` are pure. ``connections``, ``session``
and ``query`` run in the driver, ``level`` in workers. ``java`` has the source and the shuffle manager, which
Spark's Janino compiles. Nothing here commits: the caller of ``ResidentQuery`` does.
"""
