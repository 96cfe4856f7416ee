"""python -m hardmine: the command line."""

from hardmine.cli import main

main()
