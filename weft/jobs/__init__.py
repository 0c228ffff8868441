"""Jobs: what the command line, sweeps and pages share to train networks. Nothing here prints.

settings     the schema of every setting of a training, and its validation; `schema` has the types
yaml_files   settings in YAML files
networks     networks by name, fitted to data
recipes      settings from a recipe and from what is given
job          data, network and preparation of a training, made of settings
training     training and resuming, with events on the way
events       structured events: followed live, or replayed from the run folder
runner       jobs in processes of their own: queue, cancel, pause, resume
find         runs that exist
"""
