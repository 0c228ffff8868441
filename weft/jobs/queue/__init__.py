"""The queue: jobs on disk, what they need, when and where they start, and the processes that run them.

record      a job on disk: settings, state, events
job_queue   list, move, hold, pause, resume, cancel; `view` reads everything at once, `order` is the order of it
needs       what a job needs of the machine; `forecast` computes it, `history` has what earlier jobs took
slots       GPUs, CPU slots, task slots, and one for sweeps and cross-validations
scheduler   which job starts where and when, and why the others wait; `plan` applies it to a queue on disk
runner      runs jobs in processes of their own; `worker` is such a process
submission  checks settings and adds a job
remedies    what helps a job that has failed
"""
