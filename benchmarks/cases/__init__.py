"""What the benchmarks measure: one module for each kind of work, and one for each contestant's way to do it."""
