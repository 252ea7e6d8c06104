"""`python -m sparkmeta`: the command line."""

from sparkmeta.cli import main

if __name__ == "__main__":
    main(prog_name="sparkmeta")
