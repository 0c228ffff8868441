"""What is imported when it is first used (see lazy.py): descriptions of compiled functions."""

from ..explain import explain as explain
from . import artifact as artifact
