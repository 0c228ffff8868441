"""The words of memory that the threads of a team share, and the functions that its native code (team_code.py) is linked with."""

from __future__ import annotations

LINE = 16  # words that share a cache line, or a pair of lines that a CPU fetches together


class Word:
    """The words that the threads of a team share, 8 bytes each. Those that are written together share a line."""

    JOB, FUNCTION, FRAME = range(3)  # the job's number is written last; a function of 0 dismisses the workers
    THREADS, SPIN, YIELD, LISTEN = range(LINE, LINE + 4)  # these never change; times are in ticks
    HEARD, STOP, OWNER, TICKET, SERVED = range(2 * LINE, 2 * LINE + 5)  # of the threads that call `enter`
    DONE, FINISHED = range(3 * LINE, 3 * LINE + 2)  # workers that are through with the job; the last finished job
    ARRIVED, RELEASED = range(4 * LINE, 4 * LINE + 2)  # threads at the barrier; twice its number, plus 1 for "stop"
    SLEEPERS, MUTEX, CONDITION = 5 * LINE, 6 * LINE, 8 * LINE  # no system's mutex or condition takes 256 bytes
    ALL = 10 * LINE


class StopReason:
    """Why a program did not run to its end. The first two are bits of the word STOP."""

    RAISED, FORKED, NESTED = 1, 2, 4


OF_PYTHON = (
    "PyLong_AsVoidPtr", "PyLong_FromLong", "PyErr_Occurred", "PyErr_CheckSignals", "PyEval_SaveThread", "PyEval_RestoreThread",
)  # fmt: skip
OF_LIBC = (
    "sched_yield", "usleep", "pthread_mutex_lock", "pthread_mutex_unlock", "pthread_cond_wait", "pthread_cond_broadcast",
)  # fmt: skip
