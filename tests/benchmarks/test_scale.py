"""docs/scale.md holds what its arithmetic gives now, and the arithmetic keeps to cases that are worked out by hand."""

from pathlib import Path

import pytest

from on_paper import costs, exchange, figures, page

FOLDER = Path(__file__).parent
PAGE = (FOLDER.parents[1] / "docs" / "scale.md").read_text(encoding="utf-8")
MOST_LINES = 250
OPENED = "make bench NAME=scale ARGS=--write"


def test_every_table_of_the_page_is_computed() -> None:
    on_page = page.blocks_of(PAGE)
    assert list(page.blocks_of(page.block("prices", "text"))) == ["prices"]
    assert sorted(on_page) == sorted(page.BLOCKS)
    outside = page.without_blocks(PAGE)
    assert not [line for line in outside.splitlines() if line.startswith("|")]


def test_the_page_holds_what_the_figures_give() -> None:
    on_page = page.blocks_of(PAGE)
    assert "simulated" in on_page
    stale = [name for name in page.BLOCKS if name != "simulated" and on_page[name] != page.computed(name)]
    assert stale == [], f"run `{OPENED}`"


def test_the_page_holds_what_the_simulation_gives() -> None:
    rows = page.blocks_of(PAGE)["simulated"].splitlines()
    assert len(rows) == len(exchange.SCENARIOS) + 2
    again = page.computed("simulated", runs=lambda: exchange.runs(exchange.EVERY_FAULT[-1:])).splitlines()
    assert again == [*rows[:2], rows[-1]], f"run `{OPENED}`"


def test_the_page_is_short() -> None:
    assert len(PAGE.splitlines()) <= MOST_LINES


def test_a_changed_price_changes_the_written_page() -> None:
    start = f"before\n{page.block('prices', page.computed('prices'))}\nafter\n"
    assert page.written(start) == start
    dearer = figures.Prices(gpu_hour=figures.Figure(7.5, "$", "assumed", "H100 for an hour", ""))
    assert "| H100 for an hour | $7.5 |" in page.written(start, PRICES=dearer)


def test_a_second_machine_saves_what_is_said_at_the_size_that_is_said() -> None:
    for cores in (2, 64):
        cost = costs.CorpusCost(costs.bytes_worth_a_second_machine(3600.0, cores))
        assert cost.seconds(cores) - cost.seconds_on(2, cores) == pytest.approx(3600.0)
    measured = 2 / figures.CORPUS.core_seconds_per_mb.value
    assert costs.bytes_worth_a_second_machine(60.0, 2, measured) == pytest.approx(
        costs.bytes_worth_a_second_machine(60.0, 2)
    )


def test_one_process_alone_bounds_what_more_cores_give() -> None:
    cost, alone = costs.CorpusCost(1e12), figures.CORPUS.alone_share.value
    assert cost.seconds_today(1) == pytest.approx(cost.seconds(1))
    assert cost.seconds_today(10**9) == pytest.approx(alone * cost.seconds(1))


def test_the_models_have_the_parameters_that_their_names_say() -> None:
    for name, model in costs.MODELS.items():
        assert model.count.total == pytest.approx(float(name.split()[0]) * 1e6, rel=0.011)
        assert 6 * model.count.body < model.flops_per_token < 8 * model.count.total
        assert model.step_bytes < figures.TRAINING.gpu_gb.value * 1e9


def test_gpus_divide_the_time_until_gradients_take_longer_than_the_backward_pass() -> None:
    model = costs.MODELS["400 M"]
    one, eight, many = (costs.step_seconds(model, number) for number in (1, 8, 256))
    tokens, peak = figures.TRAINING.step_tokens.value, figures.TRAINING.peak_flops.value
    assert one == (pytest.approx(tokens * model.flops_per_token / (peak * 0.35)), 0.0)
    assert eight == (pytest.approx(one[0] / 8), 0.0)
    gradients = 2 * 255 / 256 * model.count.fp32_bytes / 50e9
    assert many == (pytest.approx(one[0] / 256), pytest.approx(gradients - 2 / 3 * one[0] / 256))
    assert costs.training_seconds(model, 3 * tokens, 256) == pytest.approx(3 * sum(many))


def test_a_fleet_has_cores_for_twice_its_requests() -> None:
    assert costs.measured_fleet(355 / 2).num_cores == 2
    assert costs.measured_fleet(100_000).num_cores == 1127
    assert costs.rate_of(2) == pytest.approx(355 / 2)
    assert costs.request_milliseconds(costs.MODELS["17 M"]) == costs.measured_milliseconds()


@pytest.mark.parametrize(
    ("unit", "value", "text"),
    [
        ("time_of", 89.4, "89 s"),
        ("time_of", 95.0, "1.6 min"),
        ("time_of", 36 * 3600.0, "1.5 days"),
        ("bytes_of", 2.34e12, "2.3 TB"),
        ("bytes_of", 999.6e6, "1 GB"),
        ("count_of", 10_000.0, "10,000"),
        ("count_of", 5.9e9, "5.9 billion"),
        ("dollars_of", 9_870.0, "$9,900"),
        ("dollars_of", 0.004, "under $0.01"),
    ],
)
def test_a_number_has_two_digits_and_its_unit(unit: str, value: float, text: str) -> None:
    assert getattr(page, unit)(value) == text
