"""The text side of the engine: tokenizing prompts, detokenizing outputs, and streaming them."""
