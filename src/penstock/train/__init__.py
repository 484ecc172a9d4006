"""Training heads that draft for a model: Medusa, EAGLE 1 and EAGLE 3.

Needs torch and transformers (``pip install 'penstock[train]'``); nothing else in Penstock imports
this package before it is used.
"""
