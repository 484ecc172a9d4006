"""A model as a list of ops over named buffers: what every backend runs.

``lower/`` makes a :class:`~penstock.plan.plan.Plan` of primitive ops from a
:class:`~penstock.models.spec.ModelSpec`, ``fuse.py`` replaces runs of ops by fused ones,
``shard.py`` cuts the plan for one of several ranks, and ``memory.py`` places its buffers. The
docstring of an op (``ops/``) is the contract of its kernels.
"""
