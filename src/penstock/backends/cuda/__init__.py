"""The GPU backend: a fused plan on Triton kernels, for NVIDIA GPUs.

``bind()`` (``bind.py``) turns each op into a launch (``binder.py``) and copies weights to the
device in the layout of its kernels (``matrix.py``, ``packing.py``, ``block_layouts.py``). A step is
then a CUDA graph that is replayed, or launches one by one (``executor.py``). Importing the package
alone imports no torch.
"""
