"""`python -m leafbeam.cli`: the `leafbeam` command where no script is installed."""

from leafbeam.cli.app import main

main()
