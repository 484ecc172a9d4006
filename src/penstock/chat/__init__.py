"""Conversations in a terminal: what is said, who answers, and how it is shown.

A :class:`~penstock.chat.conversation.Conversation` is a value; a
:class:`~penstock.chat.chat_model.ChatModel` (in this process, or behind a URL) streams the answer
to one; :class:`~penstock.chat.session.ChatSession` reads lines from a person, obeys the commands
among them, and shows answers.
"""
