"""`python -m pleach.cli`: the `pleach` command where no script is installed."""

from pleach.cli.app import main

main()
