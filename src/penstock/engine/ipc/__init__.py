"""The engine in a process of its own: its start, its messages, and the end of either side."""
