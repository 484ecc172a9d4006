"""Several processes, on this machine or others, each with a part of a model's layers (pipeline
parallelism).

The engine's own process is the last stage, with its scheduler and its sampler, so that logits never
cross; every other stage loads its part of the weights (``plan/stages.py``). The way of a step::

    EngineCore -> StagedExecutor.submit(step)
                    '-- StageLinks --step--> stage 0: executor.run(step)
                          |      <--rows-----'
                          '------step, rows--> stage 1: executor.run(step, rows as features)
                          .      <--rows-------'
                  Pending.wait(): the last stage runs here, and its tokens are drawn

Stages on other hosts get each step at once, and hand rows to each other, if they can reach each
other (``chain.py``); the last of them hands its rows to the engine. Several steps of different
sequences are in flight, so that stages work at once. A thread for each stage takes in what it
sends, and notices its end: the pipeline is given up then, and the engine with it, with one error
that names the stage.

``wire.py`` has the messages, ``serving.py`` what a stage does for an engine, whether it is a child
of it (``child.py``) or waits for it (``listening.py``). Ranks may share a stage: its process is the
first of them (``engine/ranks``).
"""
