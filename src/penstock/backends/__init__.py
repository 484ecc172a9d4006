"""Backends bind a plan to a device.

``reference`` is NumPy, the oracle; ``cpu`` is native; ``cuda`` is NVIDIA GPUs, through Triton.
Each says of itself in ``backend.py`` what others must know; ``registry`` has them all.
"""
