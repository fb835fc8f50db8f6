"""`python -m burnish` is `burnish`."""

from burnish.cli import main

main()
