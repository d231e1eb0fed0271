"""`python -m implicitq.theory`: the command without the rest of the package."""

import tyro

from implicitq.theory.command import TheoryOptions, run_theory

if __name__ == "__main__":
    run_theory(tyro.cli(TheoryOptions))
