from pathlib import Path

import pytest

from planner.errors import InvalidInputError
from planner.files import framework
from planner.files.framework import framework_names, load_framework


@pytest.mark.parametrize("name", ["verl", "VERL", "NeMo-RL", "nemo_rl", "nemo rl", "OpenRLHF"])
def test_names_are_found_in_any_spelling(name: str) -> None:
    assert load_framework(name).name in framework_names()


def test_unknown_names_get_a_suggestion() -> None:
    with pytest.raises(InvalidInputError, match="did you mean 'verl'") as caught:
        load_framework("verll")
    assert caught.value.exit_code == 2


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("max_tp:", "max_tpp:", "did you mean 'max_tp'"),
        ("[zero3]", "[zero4]", "unknown 'zero4'"),
        ("max_lora_rank: 512", "", "max_lora_rank missing"),
        ("max_lora_rank: 512", "max_lora_rank: many", "a whole number"),
        ("must_share:\n", "must_share: none\nmust:\n", "a list expected"),
    ],
)
def test_mistakes_in_a_rule_file_are_named(
    old: str, new: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = (framework.DATA / "verl.yaml").read_text()
    assert old in text
    (tmp_path / f"{tmp_path.name}.yaml").write_text(text.replace(old, new))
    monkeypatch.setattr(framework, "DATA", tmp_path)
    with pytest.raises(InvalidInputError, match=message):
        load_framework(tmp_path.name)
