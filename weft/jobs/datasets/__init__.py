"""Creating, versioning and examining datasets, with events on the way."""
