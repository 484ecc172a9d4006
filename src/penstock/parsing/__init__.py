"""What a model's text means besides text: reasoning, and calls of tools."""
