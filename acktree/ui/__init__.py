"""What operators see: one snapshot of a running topology, the driver's socket, and the web page.

``snapshot``, ``windows``, ``observer`` and ``door`` run in the driver and import nothing but the standard
library beside what the driver has. ``client``, ``places`` and ``stopped`` run wherever somebody asks.
``web`` is a process of its own. Nothing here decides what happens to a message.
"""
