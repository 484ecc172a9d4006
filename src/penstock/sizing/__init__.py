"""Sizing: what a model needs of a machine, how fast it would run there, and what that costs.

Nothing here needs weights, a backend or the machine that is sized. From a ``config.json`` to an
answer::

    SizedModel      model.py        the model's plan with weights and keys and values of some types
    Footprint       footprint.py    bytes of its weights, of a token's keys and values, of a step
    StepTime        step_time.py    seconds of a step: of a catalogue's device (roofline.py), or
                                    fitted to this machine (machine_times.py)
    Load, estimate  serving.py      TTFT, TPOT and throughput of in-flight batching's steady state
    Search          search.py       the configurations that hold the model, and what they give
    best            ranking.py      those that meet an SLO for the least money, time, or both

``Accelerator`` and ``Catalogue`` are data (``catalogue.toml``); :mod:`penstock.sizing.parallel` has
what ranks and stages send each other. What steps cost is the plan's (:mod:`penstock.plan.costs`).
"""
