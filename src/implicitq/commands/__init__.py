"""The command line: one file per command, each with its `Options` and `run`. They parse, call and print."""
