"""The dialect of KServe's inference protocol, version 2, with Triton's extensions."""
