"""Float fields of public dataclasses say their unit in their name."""

import dataclasses
import importlib
import pkgutil

import pytest

import planner.domain

SUFFIXES = (
    "_s", "_bytes", "_flop", "_bytes_per_s", "_flop_per_s", "_usd_per_hour", "_ratio", "_tokens", "_usd", "_per_hour",
    "_per_gpu_hour", "_factor", "_fraction", "_elements", "_elements_per_token", "_elements_per_routed_token",
    "_elements_per_sequence", "_flop_per_pair", "_flop_per_token", "_per_element", "_usd_per_iteration", "_per_log2_s",
    "_bytes_per_s_per_node", "_per_node_hour", "_hours",
)  # fmt: skip
NAMED_OTHERWISE = {
    "cv": "a ratio by definition",
    "expert_popularity_variance": "a squared ratio",
    "kl_coefficient": "dimensionless",
    "default_kl_coefficient": "dimensionless",
    "num_sequences": "a count",
    "value": "the unit stands beside it",
    "low": "the unit of the value beside it",
    "high": "the unit of the value beside it",
    "catalog": "the unit of the value beside it",
    "objective_value": "the unit stands beside it",
    "unrestricted_value": "the unit is that of the objective",
    "usd": "the unit itself",
    "bound": "the unit stands beside it",
    "weight": "a share of one",
    "elementwise_passes": "a mean count of reads and writes",
    "quantisation_passes": "a mean count of reads and writes",
}


def float_fields() -> list[tuple[str, str]]:
    found = []
    for module in pkgutil.iter_modules(planner.domain.__path__):
        loaded = importlib.import_module(f"planner.domain.{module.name}")
        for name, value in vars(loaded).items():
            if isinstance(value, type) and dataclasses.is_dataclass(value) and value.__module__ == loaded.__name__:
                found += [(name, f.name) for f in dataclasses.fields(value) if f.type in ("float", "float | None")]
    return found


@pytest.mark.parametrize(("owner", "field"), float_fields())
def test_float_fields_name_their_unit(owner: str, field: str) -> None:
    assert field.startswith("num_") or field.endswith(SUFFIXES) or field in NAMED_OTHERWISE, (
        f"{owner}.{field} does not say its unit"
    )


def test_the_rule_sees_many_fields() -> None:
    assert len(float_fields()) > 60
