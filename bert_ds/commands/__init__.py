"""What each subcommand of `bert-ds` does, once its arguments are known."""
