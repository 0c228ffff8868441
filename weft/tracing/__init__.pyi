"""What is imported when it is first used (see lazy.py): descriptions of compiled functions."""

from . import artifact as artifact
