"""The page for browsers: static files, and what serves them.

No build makes the files: they are ES modules, style sheets and one document, each small, which a
browser reads as they are. ``main.js`` starts the views: ``chat/`` (``completion/`` for models
without a chat template), ``engine/`` and ``api/``. ``server/`` asks this server, ``markdown/``
makes nodes of a model's text, and ``ui/`` has what all share.
"""
