"""The command line: one file a subcommand, `main` finds and runs them. Prints results; computes nothing itself."""
