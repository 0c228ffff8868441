"""What the pages show, read from disk. Nothing here knows of pages.

runs         an index of all runs, with what their tables show; files are read again only when they have changed
schedule     the queue in its order, with the plan of the next hours
activity     jobs of the queue and running trainings, with progress
machine      use of processors, memory, GPUs and disk
feed         one thread that looks at all of it each second and tells the pages what changed
"""
