"""The command line: one module a verb, over the public Python API; ``main`` collects them."""
