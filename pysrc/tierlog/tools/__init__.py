"""The subcommands of `tierlog` as functions over plain values, without a command line."""
