"""Integer kernels: those in plain C here, those of one instruction set in a package of its own."""
