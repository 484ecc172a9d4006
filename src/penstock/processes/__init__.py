"""Starts processes of our own, ends them with their parent, and frames messages between them.

Used by the engine's process, the workers of the sandbox and the server's guardian. Imports little:
a command starts its engine before it imports all else.
"""
