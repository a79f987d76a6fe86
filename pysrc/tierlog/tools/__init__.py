"""The verbs of the command as functions over plain values, without a command line."""
