"""The dialect of Hugging Face's Text Generation Inference: requests in, tokens out."""
