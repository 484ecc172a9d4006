"""Runs the engine in a separate process: its start, its messages, and the end of either side."""
