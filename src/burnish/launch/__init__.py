"""Launch: many ranks of one run: started here, found in the environment, written as a Slurm script, and watched."""
