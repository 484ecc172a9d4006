"""Models in GGUF files: their configuration, the names of their tensors, how these are quantized.

What a file says becomes the fields that the same model's ``config.json`` has, so families read both
by one set of rules. ``architectures.py`` has what differs between architectures, as data.
"""
