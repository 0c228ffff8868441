"""What is imported when it is first used (see lazy.py): descriptions of programs for people."""

from . import cost_model as cost_model
from . import describe as describe
