"""Blocks of KV caches on disk, found by their keys, across restarts and by all engines of a
machine.

The package knows bytes and files, no models, no caches and no engines. From the outside in::

    StoreWorkers  workers.py       the threads: one that writes and keeps house, some that read
    KvStore       store.py         what can be found: blocks are written, read and make room
    BlockReader   block_reader.py  reads blocks out of their slots
    Growth        growth.py        when the store grows, and by how much
    SlotIndex     slot_index.py    which block is in which slot, and what makes room; no files
    Place         places.py        a slot of a segment
    KeptBlocks    kept_blocks.py   until when blocks are kept that somebody has asked for
    UseNotes      use_notes.py     when blocks were used, here and by others
    SteadyClock   clock.py         the time by which they are
    StoreFolder   folder.py        an engine's place in a directory that it shares: who gives way
                  directory.py     that directory: its lock, its limit, and the folders of kinds
    Segment       segment.py       one file of slots of equal size, and the table of what is in them
    FileReader    file_reader.py   reads it through the page cache (CachedPages), or past it
    ReadMemory    read_memory.py   what it is read into
    DiskSpeed     disk_speed.py    by which of both ways a disk is read
                  layout.py        the bytes of a segment
    NewBlock      blocks.py        a block to write, and its entry
    BlockCipher   cipher.py        blocks that are encrypted on disk
    Rates         rates.py         how fast blocks were read and computed, for the next engine
    KindAbout     about.py         what blocks of one kind are of, which names their folder

And for those who are no engine::

    Holdings      holdings.py      what is in a directory, as it is now
    Prefix        prefixes.py      prefixes: listed, named, removed
    pin           pinned_prefix.py a prefix that stays, in a segment of its own
    pin_computed  pinning.py       pins what an engine computes
    Manifest      parcel.py        a prefix in a file, for another machine

Which blocks make room is for ``cache/retention.py`` to say, which simulations use, too.
"""
