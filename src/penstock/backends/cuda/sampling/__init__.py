"""Sampling on a GPU, without waiting for the host: what ``sampling/reference.py`` defines.

A *launch* chooses the next token of some sequences; a *job* is one of these choices. Several jobs
may read the same row of logits. This is the path of one job:

1. ``state.DeviceSampleState`` knows the sequence's options and how long its output is. From these
   the host makes a *record*, 16 numbers of 64 bits (``kernels/row.py``): which row of the logits,
   the random bits of the draw, temperature, top-k, addresses of what lies on the device.
2. ``launch.LaunchPlan`` sorts jobs into lists by what has to be done for them. The records and the
   lists of all jobs go to the device in ``memory.LaunchBuffers``, before the kernels that read
   them. ``launch.Launcher`` queues these; each takes one list, or none if it is empty:
3. ``begin`` takes the row's largest logit, which the model has found already: its token is the
   job's until a later kernel chooses another. A row with a NaN or an infinite maximum is an error,
   and every kernel to come skips the job. A greedy job is done.
4. ``adjust`` and ``take_largest``: if options change the logits (bias, minimum length, penalties,
   grammar), the changed row is written to scratch memory, and its largest found.
5. A job with a temperature draws. ``weigh`` and ``pick`` draw from the whole vocabulary; with a
   top-k or a top-p, ``levels``, ``gather``, ``cut_top_k`` and ``choose`` draw from the likeliest.
6. ``count_tokens`` adds the token to the counts of a sequence with penalties, and takes away the
   one that leaves where they look at the last tokens alone (``recent.RecentTokens``).
7. ``report_chunk`` and ``report_row`` report what log-probabilities are made of, if asked for.
8. Tokens, errors and reports are copied to pinned host memory. ``pending.PendingSample.wait``
   returns them as a ``Sampled``. Meanwhile the next step reads the tokens on the device.

``sampler.DeviceSampler`` does 1, 2 and 8. Kernels are in ``kernels/``: ``draw.py`` has those of 3
to 6, ``truncate.py`` those of top-k and top-p, ``report.py`` those of 7. ``memory.Sizes.bytes``
tells a memory plan what all of it takes.
"""
