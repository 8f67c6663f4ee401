"""`python -m bert_ds`, which is how launchers start a rank."""

from bert_ds.cli import main

raise SystemExit(main())
