"""What is imported when it is first used (see lazy.py): the times of algorithms are known without their code."""

from . import algorithms as algorithms
