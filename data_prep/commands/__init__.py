"""The subcommands of `bert-prep`: each module holds the arguments of a command and what it runs."""
