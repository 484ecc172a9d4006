"""Engine artifacts: packed weights kept on disk, so that a second start need not pack them.

An artifact is a folder with ``manifest.json`` and ``weights.bin``. ``key`` says what an artifact is
of, ``format`` what is in one, ``store`` keeps them, ``tuned`` reads what was found out by
measuring. The bytes of the weights have no meaning here; backends pack and use them.
"""
