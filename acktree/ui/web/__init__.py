"""The web page, REST and metrics: a process of its own, which asks drivers through their sockets.

It holds no state but the last snapshots. It needs the extra ``acktree[ui]``.
"""
