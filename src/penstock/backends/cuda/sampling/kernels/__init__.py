"""Triton kernels of the sampler."""
