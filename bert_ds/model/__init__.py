"""Networks by family, one folder each, and the parts that families share. It knows no ranks.

`family` is the interface, which lists what a new family provides. `families` is the registry of
networks (with torch), `shapes` that of their counts (without torch). `cpu` holds kernels that make
training on CPUs fast; nothing on a GPU runs them.
"""
