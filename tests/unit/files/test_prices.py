"""Prices: which one counts, where it comes from, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from planner.errors import InvalidInputError
from planner.files.catalog import generic_node, load_node
from planner.files.prices import GivenPrice, find_price, price_words, read_given_prices, read_price_file

GPUHUNT = (
    "instance_name,location,price,cpu,memory,gpu_count,gpu_name,gpu_memory,spot,disk_size,gpu_vendor,flags\n"
    "p5.48xlarge,us-east-1,40.0,192,2048.0,8,H100,80.0,False,,nvidia,\n"
    "p5.48xlarge,us-west-2,16.0,192,2048.0,8,H100,80.0,True,,nvidia,\n"
    "small,eu-1,1.0,8,64.0,1,A100,40.0,False,,nvidia,\n"
    "large,eu-1,2.0,8,64.0,1,A100,80.0,False,,nvidia,\n"
    "cpu,eu-1,0.1,8,64.0,0,,,False,,,\n"
    "old,eu-1,0.5,8,64.0,1,K80,12.0,False,,nvidia,\n"
)


def test_a_given_price_comes_before_the_file_and_the_catalog(tmp_path: Path) -> None:
    file = tmp_path / "own.csv"
    file.write_text("gpu,usd_per_gpu_hour,provider,region,date\nh100,2.5,Own,here,2026-11\nh100,3.5,Dear,,\n")
    node, listed = generic_node("h100"), read_price_file(file).quotes
    catalog = find_price("h100", node, spot=False, given=(), listed=())
    assert catalog is not None and catalog == node.price
    own = find_price("h100", node, spot=False, given=(), listed=listed)
    assert own is not None
    assert price_words(own) == "2.50 USD per GPU-hour (Own, on-demand, here, 2026-11)"
    given = find_price(
        "h100", node, spot=False, given=(GivenPrice(name="h100", usd_per_gpu_hour=1.0),), listed=listed
    )  # fmt: skip
    assert given is not None
    assert price_words(given) == "1.00 USD per GPU-hour (given with --price)"


def test_spot_prices_are_never_on_demand_ones() -> None:
    node = load_node("p5.48xlarge")
    spot = find_price("p5.48xlarge", node, spot=True, given=(), listed=())
    demand = find_price("p5.48xlarge", node, spot=False, given=(), listed=())
    assert spot is not None and demand is not None
    assert spot.kind == "spot" and demand.kind == "on-demand"
    assert spot.provider == demand.provider == "AWS"
    assert spot.usd_per_gpu_hour < demand.usd_per_gpu_hour
    assert find_price("gb200", generic_node("gb200"), spot=True, given=(), listed=()) is None
    assert price_words(None) == "no price known"


def test_a_catalog_of_gpuhunt_can_be_dropped_in(tmp_path: Path) -> None:
    file = tmp_path / "aws.csv"
    file.write_text(GPUHUNT)
    found = read_price_file(file)
    assert found.unknown_gpus == ("K80",)
    assert len(found.quotes) == 4
    price = find_price("p5.48xlarge", load_node("p5.48xlarge"), spot=False, given=(), listed=found.quotes)
    assert price is not None
    # the price of an instance, over its GPUs
    assert (price.usd_per_gpu_hour, price.provider, price.region) == (5.0, "aws", "us-east-1")
    spot = find_price("h100", generic_node("h100"), spot=True, given=(), listed=found.quotes)
    assert spot is not None and (spot.usd_per_gpu_hour, spot.region) == (2.0, "us-west-2")
    # the same name stands for two GPUs, told apart by their memory
    by_gpu = {
        gpu: find_price(gpu, generic_node(gpu), spot=False, given=(), listed=found.quotes)
        for gpu in ("a100-sxm-40g", "a100-sxm-80g")
    }
    assert [price and price.usd_per_gpu_hour for price in by_gpu.values()] == [1.0, 2.0]


def test_a_node_type_takes_no_price_of_another_machine(tmp_path: Path) -> None:
    file = tmp_path / "aws.csv"
    file.write_text(GPUHUNT.replace("p5.48xlarge", "other"))
    node = load_node("p5.48xlarge")
    assert find_price("p5.48xlarge", node, spot=False, given=(), listed=read_price_file(file).quotes) == node.price


def test_yaml_prices(tmp_path: Path) -> None:
    file = tmp_path / "own.yaml"
    file.write_text("prices:\n- {node: p5.48xlarge, usd_per_gpu_hour: 4.5, kind: spot, region: eu}\n")
    price = find_price("p5", load_node("p5.48xlarge"), spot=True, given=(), listed=read_price_file(file).quotes)
    assert price is not None and (price.usd_per_gpu_hour, price.region) == (4.5, "eu")


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.csv", "x,y\n1,2\n", "other columns"),
        ("a.csv", "gpu,usd_per_gpu_hour\n", "no rows"),
        ("a.csv", "gpu,usd_per_gpu_hour\nh100,-1\n", "row 2.*no price"),
        ("a.csv", "gpu,usd_per_gpu_hour\nh100,nan\n", "row 2.*no price"),
        ("a.csv", "gpu,usd_per_gpu_hour\nh100,1e999\n", "row 2.*no price"),
        ("a.csv", "gpu,usd_per_gpu_hour\nh1000,1\n", "h1000"),
        ("a.csv", "gpu,node,usd_per_gpu_hour\nh100,p5.48xlarge,1\n", "either"),
        ("a.csv", "gpu,usd_per_gpu_hour,kind\nh100,1,weekly\n", "kind 'weekly'"),
        ("a.csv", "gpu,usd_per_gpu_hour\nh100,1,2\n", "more values"),
        ("a.csv", 'gpu,usd_per_gpu_hour\n"h100,1\n', "not CSV"),
        ("aws.csv", GPUHUNT.replace(",8,H100", ",-8,H100"), "gpu_count"),
        ("aws.csv", GPUHUNT.replace("True", "perhaps"), "spot 'perhaps'"),
        ("aws.csv", GPUHUNT.replace("40.0,192", "free,192"), "price 'free'"),
        ("a.yaml", "prices: []\n", "no prices"),
        ("a.yaml", "prices: [1]\n", "no mapping"),
        ("a.yaml", "other: 1\n", "other"),
    ],
)
def test_what_is_no_price_file_is_refused_with_its_row(tmp_path: Path, name: str, text: str, message: str) -> None:
    file = tmp_path / name
    file.write_text(text)
    with pytest.raises(InvalidInputError, match=message) as found:
        read_price_file(file)
    assert name in str(found.value) or "h1000" in message


@pytest.mark.parametrize(
    ("text", "message"),
    [("h100", "not understood"), ("h100=", "not understood"), ("b300=2", "h100"), ("h100=-2", "positive")]
)  # fmt: skip
def test_a_given_price_names_a_type_of_the_sweep(text: str, message: str) -> None:
    with pytest.raises(InvalidInputError, match=message):
        read_given_prices([text], ["h100"], where="--price")


def test_given_prices_may_have_a_unit() -> None:
    (price,) = read_given_prices(["H100=2.5 USD/hour"], ["h100"], where="--price")
    assert price == GivenPrice(name="h100", usd_per_gpu_hour=2.5)
