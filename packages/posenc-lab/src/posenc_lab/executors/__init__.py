"""Runs independent jobs on this machine, as an array of Slurm, or on a cluster of Ray."""
