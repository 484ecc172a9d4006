"""What measures and strains ``penstock serve`` from outside."""
