"""Graph -> Graph rewrites, one pass a file, run by ``pipeline``."""
