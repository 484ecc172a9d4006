"""The OpenAI dialect: requests in, responses and events out, errors in its shape."""
