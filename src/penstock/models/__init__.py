"""Which models there are: their configurations, read strictly, and the names of their tensors.

A family is a module, such as ``llama.py``: ``read()`` turns its ``config.json`` into a
:class:`~penstock.models.spec.ModelSpec`, which says what the layers compute, and ``NAMES`` says
which tensors of a checkpoint its weights are (``names.py``). ``registry.py`` finds the family of a
configuration, ``quantized.py`` reads its ``quantization_config``, ``gguf/`` reads GGUF files, and
``draft_heads.py`` has heads that draft. Nothing here knows how a model is run.
"""
