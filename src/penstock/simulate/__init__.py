"""Simulation: a trace played against the real scheduler and KV books, on a clock of modelled steps.

No model runs, and nothing here knows weights, kernels or HTTP. The path of one request::

    Conversation    bench/load/     what is asked, and when: of a trace, as ``bench serve`` plays it
    Asked           asked.py        one turn of it as the engine sees it: lengths, and the keys of
                                    its blocks, by which equal prefixes are found
    Router          routing.py      which replica gets it
    Replica         replica.py      the scheduler, its cache and its front end, on their own clock
      StepClock     clock.py        seconds of a step: of a plan on a catalogue's device or a fitted
                                    machine (plan_clock.py), or of a model that was measured
                                    (calibration.py)
      FrontEnd      front_end.py    when a request reaches the engine, and the tokens of a step the
                                    client: one event loop (event_loop.py), and paced streams
    Fleet           fleet.py        arrivals and replicas in the order of their times
    SimulatedRun    outcome.py      the figures, named as those of ``bench serve``

While steps only decode, as many of them as come before the next arrival or end are one event:
``Scheduler.decode_steadily`` advances the books, and their times are summed as arrays.

A ``Setup`` (setup.py) says what a replica is: the limits that the engine's options amount to, the
clock, the front end's times, and how far these were measured.
"""
