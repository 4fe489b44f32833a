"""Products of float matrices: register tiles of every core, how a product is cut, its cost."""
