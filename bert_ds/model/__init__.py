"""Networks by family, one folder each, and next to them what families share.

Knows no ranks. `families` names the networks (torch), `shapes` their counts (without torch), `cpu`
holds code that makes training on CPUs fast and that nothing on a GPU runs.
"""
