"""Measures how well a model predicts a text: by itself, and beside another.

``windows`` cuts a text into pieces that a model reads from an empty context, ``text_model`` gives
the logits of each piece, and ``perplexity`` and ``comparison`` make figures of them.
"""
