"""Structured output: what a text must be, and which tokens may come next."""
