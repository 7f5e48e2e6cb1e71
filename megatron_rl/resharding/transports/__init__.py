"""Ways for weights to get from one rank to another, chosen for each pair of ranks: see ``selection.py``."""
