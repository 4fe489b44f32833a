"""The tuner: finds, by measuring on the board, the template and knobs of every task of a model."""
