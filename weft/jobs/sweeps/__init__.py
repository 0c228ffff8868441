"""Sweeps: searching hyperparameters with many trials.

search_space  lists and ranges of settings
study         samplers and pruners, by Optuna
trials        trials as jobs of a queue
search        the loop that asks for trials and follows them
sweep         starting and resuming a sweep
record        a sweep on disk
"""
