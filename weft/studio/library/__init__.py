"""What the pages show, read from disk. Nothing here knows of pages.

runs         an index of all runs, with what their tables show; files are read again only when they have changed
jobs         jobs of the queue and running trainings, with progress
machine      use of processors, memory, GPUs and disk
feed         one thread that looks at all of it each second and tells the pages what changed
"""
