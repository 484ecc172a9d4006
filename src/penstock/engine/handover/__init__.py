"""Prompts computed by one engine and continued by another (docs/disaggregation.md).

A *prefill engine* (``prefill.py``) computes a prompt as it computes any, and sends blocks of its KV
cache as steps fill them. A *decode engine* (``decode.py``) holds the request back meanwhile, puts
the blocks into its own cache by the keys that it made itself of the prompt, and then schedules the
request like any other: the longest cached prefix is found, and what is missing is computed. So a
handover can be late, cut short or damaged, and nothing depends on it but time.

``wire.py`` has the messages and ``link.py`` their frames, ``handshake.py`` says who may talk to
whom and ``identity.py`` whose blocks are the same; threads (``peer.py``, ``listener.py``) do all
that waits for sockets, and ``inbox.py`` is where what they receive waits for the engine's thread.
``rule.py`` decides which prompts are worth it, and ``station.py`` puts all of it together.
"""
