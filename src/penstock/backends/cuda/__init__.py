"""NVIDIA GPUs: a fused plan on Triton kernels. Importing the package alone imports no torch."""
