"""The CPU backend: a plan on the native executor of ``csrc/``.

``bind()`` (``bind.py``) appends a plan's ops to a native executor (``append.py``), which reserves
memory for their weights, and packs these into the layout of its kernels (``forms.py``) or restores
them from an engine artifact (``regions.py``). A step is then one native call (``executor.py``).
"""
