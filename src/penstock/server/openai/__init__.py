"""The OpenAI dialect: requests in, responses and events out."""
