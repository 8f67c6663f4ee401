"""`bert-ds` where DeepSpeed is made to accept fp16 on CPUs, which it otherwise refuses.

For tests of overflow, loss scaling and precision without a GPU; started as a script by a launcher.
"""

import sys

from bert_ds.cli import main
from bert_ds.engine import import_deepspeed

if __name__ == "__main__":
    import_deepspeed().accelerator.get_accelerator().is_fp16_supported = lambda: True
    sys.exit(main())
