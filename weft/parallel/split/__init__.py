"""Layers of which every process along an axis of a mesh computes a part."""
