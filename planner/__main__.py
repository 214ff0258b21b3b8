"""`python -m planner` is `rlplan`."""

from planner.cli import main

if __name__ == "__main__":
    main()
