"""Fields of bodies beside those of the structs: rules for them, and what is done by a rule."""
