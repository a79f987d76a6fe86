"""The verbs of the command: each one a function over plain values, with no command line in it."""
