"""Jobs: what the command line, sweeps and pages share to train networks. Nothing here prints.

settings     the schema of every setting of a training, and its validation; `schema` has the types
yaml_files   settings in YAML files
networks     networks by name, fitted to data
recipes      settings from a recipe and from what is given
job          data, network and preparation of a training, made of settings
training     training and resuming, with events on the way
events       structured events: followed live, or replayed from the run folder
record       a job on disk: settings, state, events
queue        the queue of jobs: list, move, hold, pause, resume, cancel; `queue_view` reads it all, `queue_order` is the order of it
needs        what a job needs of the machine; `job_forecast` computes it, `history` has what earlier jobs took
slots        GPUs, CPU slots, task slots, and one for sweeps and cross-validations
scheduler    which job starts where and when, and why the others wait; `queue_plan` applies it to a queue on disk
remedies     what helps a job that has failed
datasets     creating datasets, with events on the way
submission   checks settings and adds a job to the queue
cross_validation  a training for each fold: `fold_queue` has them as jobs, `fold_jobs` the whole as a job of a queue
ensembles    several runs as one; `ensemble_job` makes one as a job
sweep        searching settings: `search_space` has lists and ranges, `sweep_study` samplers and pruners, `sweep_trials` trials as jobs
cluster_runner  runs the jobs of a queue on a Ray cluster (`ray_cluster`): `remote_training` is one on its node, `file_copies` its files
compression  compressing a run: prune, share, pack, with a Pareto page; `compression_settings` are its settings
runner       runs the jobs of a queue in processes of their own; `worker` is such a process
predictor    predicting with a saved program, an ONNX model or a run
find         runs that exist
annotations  tags, notes, group and star of a run

The names of `__init__.pyi` are imported when they are first used: `weft job list` loads no compiler.
"""

from ..lazy import lazy_attributes as _lazy_attributes

_lazy_attributes(__name__)
