"""Connections between processes of Penstock on different hosts, which prove to each other that they
know a secret.

The way of one::

    Listener.start(party, inbound, serve)                 sockets.connect(address)
         '-- accept: Party.greet(sock) <-- Hello, Proof --> Party.greet(sock)
                          |                                      |
         serve(Channel) --'        messages and payloads         '-- Channel

A :class:`~penstock.peers.handshake.Party` is one end: what it is, whom it takes, and the secret
(``secret.py``). A :class:`~penstock.peers.channel.Channel` sends and receives frames, each of a
message and the bytes that go with it; which messages these are is for those who use it to say
(``engine/stages/wire.py``, ``engine/handover/wire.py``).

Nobody in between can change, repeat, leave out or add a frame. Nothing is encrypted: who can read
the network can read the frames. Without a secret, connections are those of this machine alone.
"""
