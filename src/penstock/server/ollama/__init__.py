"""The dialect of Ollama's API: requests in, lines of JSON out."""
