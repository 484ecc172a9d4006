"""GGUF files, read and written: metadata (key-value pairs), tensor types, and where tensors lie.

What the metadata mean for a model is in ``models/gguf``; tensors are read by
``weights/gguf_file.py``.
"""
