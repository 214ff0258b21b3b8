import subprocess

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.adapters.shell import comment, hydra_text, shell_word
from planner.errors import InvalidInputError

# Checked with Hydra 1.3.2: composing `key=<quoted>` gives the text back.
QUOTED = [
    ("Qwen/Qwen3-32B", "'Qwen/Qwen3-32B'"),
    ("it's", r"'it\'s'"),
    ("a\\'b", r"'a\\\'b'"),
    ("end\\", "'end\\\\'"),
    ("${oc.env:HOME}", r"'\${oc.env:HOME}'"),
    ("\\${x}", r"'\\\${x}'"),
    ("C:\\models", "'C:\\models'"),
    ("a\nb", "'a\nb'"),
    ("", "''"),
]


@pytest.mark.parametrize(("text", "quoted"), QUOTED)
def test_hydra_text(text: str, quoted: str) -> None:
    assert hydra_text(text) == quoted


def test_values_that_cannot_be_passed_are_errors() -> None:
    with pytest.raises(InvalidInputError):
        hydra_text("???")
    with pytest.raises(InvalidInputError):
        shell_word("a\0b")


@settings(max_examples=30, deadline=None)
@given(st.text(st.characters(blacklist_categories=("Cs",), blacklist_characters="\0"), max_size=40))
def test_a_shell_word_expands_to_its_text(text: str) -> None:
    # A trailing dot keeps trailing newlines apart from those that printf could drop.
    result = subprocess.run(["bash", "-c", f"printf '%s.' {shell_word(text)}"], capture_output=True, check=True)
    assert result.stdout == text.encode() + b"."


@given(st.text())
def test_a_comment_stays_on_its_line(text: str) -> None:
    assert len(f"# {comment(text)}".splitlines()) == 1
