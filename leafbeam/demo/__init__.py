"""`leafbeam demo`: the commands from a log to a running server, and checks of its answers in SQL."""
