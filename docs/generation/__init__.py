"""Makes the pages of docs/ that follow from code: `python -m docs.generation` (`make docs`).

`docs/cli.md` and `docs/api.md` are whole pages; in other pages and in README.md the output of commands is renewed.
"""
