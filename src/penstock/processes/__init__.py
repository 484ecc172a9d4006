"""Processes of our own: how one is started, how it ends with its parent, how messages are framed.

Used by the engine's process, the workers of the sandbox and the server's guardian. Imports little:
a command starts its engine before it imports all else.
"""
