"""The Responses API: its structs, its input as a chat, its output as items and events."""
