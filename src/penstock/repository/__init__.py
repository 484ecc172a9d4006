"""Several models behind one server: which there are, and which of them are in memory.

A :class:`~penstock.repository.catalogue.Catalogue` says what there is. A
:class:`~penstock.repository.repository.Repository` gives a model by its name, and loads it before
where that is needed; what it does next is decided by
:class:`~penstock.repository.books.Books`, which knows neither engines nor clocks.
"""
