"""Engine artifacts: packed weights kept on disk, so that a second start need not pack them.

An artifact is a folder with ``manifest.json`` and ``weights.bin``. ``key`` identifies the weights,
``format`` reads and writes the files, ``store`` keeps the folders, and ``tuned`` reads measurements
that were kept with them. The bytes of the weights have no meaning here; backends pack and use
them.
"""
