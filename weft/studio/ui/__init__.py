"""The frame around every page, components, charts and formats."""
