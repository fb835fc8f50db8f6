"""Annotations of pictures: boxes in the four common formats, read, checked and written."""
