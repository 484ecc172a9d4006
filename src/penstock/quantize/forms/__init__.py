"""What matrices become: how they are rounded to nearest, and how formats store them."""
