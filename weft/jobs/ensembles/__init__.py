"""Ensembles: several runs as one network, by averages, votes or averaged weights."""
