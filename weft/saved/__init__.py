"""Saved programs: a function or network in one file that runs without the code that built it.

A `.weft` file is an uncompressed ZIP archive: `manifest.json`, the graphs as text (`eval.py`, `train.py`) and
`weights.safetensors`. Loading parses and checks the text; it never executes it.
"""
