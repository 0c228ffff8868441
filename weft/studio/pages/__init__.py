"""The pages, one a file. Each has a function `add(studio)` that registers its addresses."""
