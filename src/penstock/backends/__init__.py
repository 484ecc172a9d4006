"""Backends bind a plan to a device.

``reference`` is NumPy, the oracle; ``cpu`` is native; ``cuda`` is NVIDIA GPUs, through Triton.
Each describes itself in a ``backend.py``; ``registry`` lists and chooses them.
"""
