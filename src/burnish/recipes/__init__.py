"""Shipped recipes, one file each: a function of the file's name that returns a Recipe."""
