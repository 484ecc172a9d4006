"""A load generator for servers of OpenAI's API: who asks what and when, and what came back."""
