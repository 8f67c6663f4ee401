"""What the hosts of a run have, where they differ, and whether they can exchange data.

`facts` looks at one host, `hosts` asks several over ssh, `ranks` asks all ranks of a launcher,
`judge` makes findings of it.
"""
