"""Cross-validation: a training for each fold. `queue` has them as jobs, `jobs` the whole as a job of a queue."""
