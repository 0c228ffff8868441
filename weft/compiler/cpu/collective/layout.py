"""The words of memory through which native code finds its peers along an axis of a mesh."""

from __future__ import annotations

TABLE = 3  # the entry of a program's status with the address of a table: a context for each axis of the mesh
FAILED = -1  # what an aborted collective writes to the status; the second entry is the number of the peer, or -1

LINE = 128  # bytes: processes never write to the same cache line
TAG_BITS = 16  # of a published word: which collective it belongs to; the bits above count


class Context:
    """The words of a context, 8 bytes each, in the memory of one process. Addresses unless stated otherwise."""

    INDEX = 0  # the number of this process along the axis
    LANES = 1  # the threads of a process that take part, each with slots and a count of its own
    PUBLISHED = 2  # shared: a line of LINE bytes for each process and lane
    STAGING = 3  # shared: two slots for each process and lane
    SLOT_BYTES = 4  # a number
    SEQUENCES = 5  # the number of the last exchange of each lane, LINE bytes apart
    STOP = 6  # a word that is not 0 if the processes should give up
    YIELD = 7  # the function sched_yield
    SPINS = 8  # how often a waiting thread looks before it gives its core to others
    RECEIVED = 9  # of a link: shared, how many messages were received; PUBLISHED is how many were sent, LANES how many slots there are
    SLEEP = 10  # the function usleep
    YIELDS = 11  # how often it gives its core to others before it sleeps between looks
    ALL = 16


class MpiContext:
    """The words of a context of MPI that follow those of `Context`."""

    SEND, RECEIVE, TEST = 16, 17, 18  # the functions MPI_Isend, MPI_Irecv, MPI_Testall
    COMMUNICATOR, BYTE = 19, 20  # handles: numbers or addresses, as the library has it
    REQUESTS, STATUSES = 21, 22  # memory for two of each for every process
    REQUEST_BYTES = 23  # the size of a request
    POSITION = 24  # the number of collectives that were started, and the tag of the last one in the lowest TAG_BITS
    NEIGHBOURS = 25  # the context of the shared memory of consecutive processes on one machine
    NEIGHBOUR_COUNT = (
        26  # how many they are: a power of two that divides the number of all, or all; 1 if nothing is shared
    )
    ALL = 32
