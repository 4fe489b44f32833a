"""Looks at a board: what it is, whether it is as its board.toml says, and fit to be measured on."""
