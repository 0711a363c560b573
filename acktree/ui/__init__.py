"""What operators see: one snapshot of a running topology, the driver's socket, and the web page.

``snapshot``, ``windows``, ``observer`` and ``door`` run in the driver and import nothing but the standard
library beside what the driver has. ``letters``, ``log_levels`` and ``tracing`` are the
parts of the door. ``client``, ``places`` and ``stopped`` run in the process that asks.
``web`` is a process of its own. Nothing here decides what happens to a message.
"""
