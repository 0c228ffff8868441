"""Passes from graph to graph, the same for every backend."""
