"""Writes models to GGUF files: from a Hugging Face checkpoint, or from another GGUF file.

``conversion.py`` is the whole of it: it asks for the metadata and the tensors of a file
(``content.py``), for the type of each (``types.py``), and writes them (``new_file.py``).
"""
