"""`ateplace map`: the placement as a page that lives.

    watches -> feed -> board (pure) -> change -> history (bounded) -> server-sent events -> the page
                                          |
                                          +-> --record FILE;  --replay FILE takes the feed's place

Runs where the operator is, with the operator's own rights, and writes nothing to the cluster.
"""
