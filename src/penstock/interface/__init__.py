"""What packages share: the objects that pass between them, and the protocols that they keep."""
