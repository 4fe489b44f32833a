"""``python -m aotgen``."""

from aotgen.cli.main import main

if __name__ == "__main__":
    main()
