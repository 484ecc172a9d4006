"""Tiers below the pool of blocks: what the pool forgets is found in the host's memory, where the
pool is a GPU's, and on disk (docs/kv-tiers.md).

A tier is a :class:`BlockStore` (``block_store.py``): :class:`HostBlocks` (``host_blocks.py``) or
:class:`StoredBlocks` (``stored_blocks.py``, with the threads of ``kvstore/workers.py``). All else
is one for both. The path of a block down: a step fills it, the cache publishes it
(``KvCache.follow``), and between two steps :class:`Saving` (``saving.py``), one for each store,
begins to copy it out of the cache; when the copy is done, it is given to the store. And up: a
request waits, :class:`PrefixSearch` (``prefix_search.py``) finds that its prefix is longer in the
stores than in the pool, and reading it takes less time than computing it (``rule.py``):
:class:`Restoring` (``restoring.py``) holds the request back meanwhile
(``scheduler.admission.Gate``), and has those pieces that are not being read for another request
already (:class:`Coming`, ``coming.py``) read and put into the cache between steps by
:class:`Intake` (``intake.py``), beside others at a :class:`Pace` (``pacing.py``); when its turn
comes, the blocks are found like any cached prefix. A sequence that was preempted waits like any
other. :class:`KvTiers` (``tiers.py``) is all of it together, for the engine's loop.

Where the pool is the host's memory, a copy is done when it was begun. A device makes it beside the
steps (``interface.blocks.BlockMover``): what leaves is *leaving* until then, and can be found in
its store thereafter; what comes is *landing*, and can be found in the pool at once, since a step
that reads it waits for it. All is the engine's thread's, but what the stores' threads do; and none
of it knows files.
"""
