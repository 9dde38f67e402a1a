"""`python -m millstream`: the command, where it is not on the path."""

from millstream.cli.main import main

if __name__ == "__main__":
    main()
