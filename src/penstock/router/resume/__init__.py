"""Streams that another replica begins again, without what the client has already.

A server of Penstock's gives the same answer to the same request with the same seed, bit by bit. So
a stream that broke off is continued by sending the request once more, to another replica: what
comes is compared with what the client has and dropped, up to where the client's ends. This holds
for whatever the request asks for (grammars, tools, stop strings, log-probabilities, several
choices), since it is the same request.

Events of two runs are cut at different places and have names and times of their own, so they are
compared part by part: texts and lists grow from event to event, all else comes once. The client
keeps the first run's names and times.

``stream.py`` has what all dialects share, a module for each dialect its :class:`Stream`, and
``dialects.py`` which path has which.
"""
