"""Speculative decoding: drafts of what comes next, and their verification by the model."""
