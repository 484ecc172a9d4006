"""Embeddings: what a request asks for, and the pooling of hidden states into one vector."""
