"""GGUF files: their metadata, and where their tensors lie."""
