"""Token ids in, token ids out: loading a model, and the loop that steps it."""
