"""Calls of tools read from text, a reader for each form."""
