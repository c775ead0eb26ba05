"""The host process of a node: one engine that feeds every rank of the node through a Unix socket.

``launch`` reads who this rank is, ``folder`` finds the private folder where the ranks of a node meet, ``start`` execs
the process, ``lifetime`` says when it ends, ``__main__`` is the process itself, ``attached`` the rank's end.
"""
