"""Tuning: options for a model, a machine and a load, found by simulation and chosen by measurement.

The path of one tuning::

    Space        space.py       which options may have which values; a Candidate has one of each
    TraceLoad    load.py        the trace, how it is offered, and its figures
    Simulator    simulator.py   what a candidate would make of the load, on calibrated clocks
    Search       search.py      halving over longer and longer parts of the load, then one option
                                after the other; by an Objective (objective.py)
    Verifier     verify.py      the best and the default, served and loaded in turn
    Choice       choice.py      which of them is taken, and how it compares
    Profile      made.py        the document (``penstock/profile.py``) that all of this makes
"""
