"""Side-by-side measurements. `python -m bench NAME` makes one and writes it to bench/results/."""
