"""Jobs: what the command line, sweeps and pages share to train networks. Nothing here prints.

settings      the schema of every setting of a training, and its validation; `schema` has the types
yaml_files    settings in YAML files
networks      networks by name, fitted to data
recipes       settings from a recipe and from what is given
job           data, network and preparation of a training, made of settings
training      training and resuming, with events on the way
events        structured events: followed live, or replayed from the run folder
find          runs that exist; `annotations` are tags, notes, group and star of a run

queue/        jobs on disk, the scheduler, and the processes that run them
sweeps/       searching hyperparameters
folds/        cross-validation
ensembles/    several runs as one network
cluster/      trainings on a Ray cluster
compression/  compressing a run
prediction/   predicting with a run, a saved program or an ONNX model
profiles/     profiles as jobs
datasets/     creating, versioning and examining datasets

The names of `__init__.pyi` are imported when they are first used: `weft job list` loads no compiler.
"""

from ..lazy import lazy_attributes as _lazy_attributes

_lazy_attributes(__name__)
