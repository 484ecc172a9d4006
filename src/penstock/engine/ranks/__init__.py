"""Several processes of one machine that share every layer of a model (tensor parallelism).

Rank 0 is the engine's own process, with its scheduler, its sampler and its executor; each other
rank is a child process that loads its part of the weights (``plan/shard.py``) and runs the same
steps. The way of a step::

    EngineCore -> RankedExecutor.run(step)
                    |-- RankProcesses.send(step) ----> child.py: executor.run(step)
                    '-- own executor.run(step) <-----> AllGather, in shared memory or by sockets
                  logits, whole on every rank; rank 0 alone draws from them

A thread of rank 0 starts the processes, watches them, and gives the group up when one ends: every
rank that waits for others fails then, and the engine with it, with one error that says why.

Ranks on GPUs exchange columns on their devices (``backends/cuda/group.py``), and the step's tokens
are drawn there, behind it: rank 0 has a ``DeviceRanks`` in the place of a ``RankedExecutor``.
"""
