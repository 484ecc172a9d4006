"""Embeddings and labels: what a request asks for, the pooling of hidden states into one vector, and
what logits say of labels."""
