"""Everything the studio does, as REST below /api/v1. Pages change nothing but through it."""
