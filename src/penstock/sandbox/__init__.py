"""Running risky work of requests in worker processes that may be lost.

The check of a grammar, the rendering of a chat template and the tokenizing of a long text run in
worker processes with limits of memory, stack and time (``worker``). ``WorkerPool`` serves an event
loop, ``LocalWorker`` one blocking caller; both exchange ``jobs`` messages over a socket pair and
never unpickle anything.
"""
