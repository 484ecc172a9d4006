"""Decides every open option of the engine, for one machine and one model.

:func:`resolve` asks one decider after the other. Each takes the :class:`Inputs` and what was
decided before it, and returns a frozen record of its values, with the reason for each::

    check_options          inputs.py        refuses values that fit no machine and no model
    decide_backend         backend.py       the backend, and on which GPU
    decide_quantization    quantization.py  the schemes of the model's matrices
    decide_threads         backend.py       compute threads and their CPUs
    decide_step_limits     step_limits.py   sequences and tokens of a step
    decide_plans           plans.py         the fused plans of the model and of its draft
    decide_memory          memory.py        the KV cache, and how long a sequence may become
    _check_speculation     resolver.py     refuses options of speculation that are out of range
    decide_sampling        sampling.py      sampling options of requests that leave them out
    decide_artifacts       backend.py       the folder of packed weights

A decider raises ConfigError, which names the fix, as soon as something cannot be had; so of several
mistakes the first in this order is reported.
"""

from penstock.resolve.plans import draft_block_bytes
from penstock.resolve.resolver import Resolved, resolve

__all__ = ["Resolved", "draft_block_bytes", "resolve"]
