"""What ``benchmarks/gpu.py`` measures, how, and how it is reported."""
