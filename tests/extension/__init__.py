"""A package outside of weft that brings ops and a device: what "Writing an op" and "Writing a backend" say, as tests run it."""
