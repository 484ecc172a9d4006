"""Rules of grammars for calls and values, for each form."""
