"""What the hosts of a run have, where they differ, and whether they can exchange data.

`host_facts` looks at one host, `hosts` asks those of a hostfile over ssh, `ranks` asks all ranks of
a launcher, `exchange` measures an all-reduce between them, and `judge` turns facts into `findings`.
"""
