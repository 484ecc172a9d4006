"""The text side: prompts into token ids, tokens into texts, streams, and who may have one open."""
