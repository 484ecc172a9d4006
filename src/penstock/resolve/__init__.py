"""Decides every open option of the engine, for one machine and one model.

:func:`resolve` asks one decider after the other. Each takes what it needs of the :class:`Inputs`
and of what was decided before it, and returns a frozen record of its values, with the reason for
each::

    decide_ranks           ranks.py         processes that share every layer
    decide_adapters        adapters.py      room for low-rank adapters
    decide_backend         backend.py       the backend, and on which GPU
    decide_quantization    quantization.py  the schemes of the model's matrices
    decide_calibration     calibration.py   whether a text says how matrices are rounded
    decide_threads         backend.py       compute threads and their CPUs
    decide_step_limits     step_limits.py   sequences and tokens of a step
    decide_lengths         lengths.py       how long prompts and answers may be
    decide_plans           plans.py         the fused plans of the model and of its draft
    decide_memory          memory.py        the KV cache, and how long a sequence may become
    decide_kv_host         kv_host.py       the host's memory below a GPU's KV cache
    decide_kv_disk         kv_disk.py       the disk below the KV cache
    decide_sampling        sampling.py      sampling options of requests that leave them out
    decide_artifacts       backend.py       the folder of packed weights

Two checks decide nothing. ``check_options`` (``inputs.py``), before all of these, refuses values
that fit no machine and no model; and between ``decide_memory`` and ``decide_sampling`` the resolver
refuses options of speculation that are out of range. Last of all ``use_of_profile``
(``profile.py``) names the profile as the reason of options that are its, and refuses one of another
model.

Deciders and checks raise ConfigError, which names the fix, as soon as something cannot be had; so
of several mistakes the first in this order is reported.
"""

from penstock.resolve.plans import draft_block_bytes
from penstock.resolve.resolver import Resolved, resolve

__all__ = ["Resolved", "draft_block_bytes", "resolve"]
