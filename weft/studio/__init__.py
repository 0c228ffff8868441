"""The studio: weft in the browser. `weft studio` starts it.

config       where runs are, the address, the limits
keys         the secrets of a studio
store/       accounts, sessions, tokens, settings and the log, in a database
decoding     decodes images of strangers in guarded processes
library/     what the pages show, read from disk; nothing here knows of pages
ui/          the frame around every page, components, charts and formats; HTML is in templates/, styles and scripts in assets/
api/         everything as REST, below /api/v1; all changes go through it
pages/       one file a page
roles        which role every page and route needs
access       who sends a request and whether they may, and the headers of every answer; rate_limit, forwarded: its parts
client       a client for programs, and its `connection`; they need nothing but Python
server       puts them together; `serve` starts it with the runner of the queue

Each imports only what stands above it. The work itself is done by `weft.jobs`: what the studio can do, the
command line and Python can do too, and runs that they start appear here.
"""

from ..lazy import lazy_attributes as _lazy_attributes

_lazy_attributes(__name__)
