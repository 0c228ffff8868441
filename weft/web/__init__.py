"""A network as a page: a folder that classifies pictures in the browser, offline, opened as a file or from any server."""
