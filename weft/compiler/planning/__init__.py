"""From a graph to a program: fusion, schedule, memory, cost model."""
