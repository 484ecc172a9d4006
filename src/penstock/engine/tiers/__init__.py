"""A tier below the pool of blocks: what the pool forgets is found on disk (docs/kv-tiers.md).

The path of a block down: a step fills it, the cache publishes it (``KvCache.follow``), and between
two steps :class:`Saving` (``saving.py``) copies it out of the cache and gives it to the threads of
the store (``kvstore/workers.py``). And up: a request waits, :class:`PrefixSearch`
(``prefix_search.py``) finds that its prefix is longer on disk than in the pool, and reading it
takes less time than computing it (``rule.py``): :class:`Restoring` (``restoring.py``) holds the
request back meanwhile (``scheduler.admission.Gate``), and has it read and put into the cache
between steps by :class:`Intake` (``intake.py``), beside others at a :class:`Pace`
(``pacing.py``); when its turn comes, the blocks are found like any cached prefix. A
sequence that was preempted waits like any other. :class:`KvTier` (``tier.py``) is both together,
for the engine's loop.

All of it is the engine's thread's, but what the store's threads do; and none of it knows files.
"""
