"""Reads weights from checkpoints: safetensors, GGUF and torch files, in floats or quantized.

``published.py`` opens a checkpoint's files and lists their tensors, each a view of the mapped file
(``tensor_file.py``). ``CheckpointWeights`` (``checkpoint.py``) checks them against the weights that
a plan declares, before any is read, and reads one weight at a time by its source
(``sources.py``). A matrix that the checkpoint has quantized is read by the reader of its format
(``gptq.py``, ``float_codes.py``, ...; ``sources.READERS`` lists them) into a tensor of ``quant``.
"""
