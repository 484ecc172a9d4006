"""The dialect of llama.cpp's server: requests in, texts out."""
