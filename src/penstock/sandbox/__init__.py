"""Work that a request can blow up, done in processes that may be lost.

A grammar's check, a chat template and the tokenizing of a long text are given to worker processes
with limits of memory, stack and time (``worker``). ``WorkerPool`` serves an event loop,
``LocalWorker`` one blocking caller; both speak in ``jobs`` over a socket pair and never unpickle
anything.
"""
