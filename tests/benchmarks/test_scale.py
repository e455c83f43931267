"""docs/scale.md holds what its arithmetic gives now, and the arithmetic keeps to cases that are worked out by hand."""

import pytest

import scale
from on_paper import costs

PAGE = scale.PAGE.read_text(encoding="utf-8")


def test_the_page_holds_what_the_figures_give() -> None:
    on_page = scale.blocks_of(PAGE)
    assert sorted(on_page) == sorted(scale.BLOCKS)
    computed = {name: scale.computed(name) for name in on_page}
    assert computed == on_page, "run `make bench NAME=scale ARGS=--write`"
    assert scale.written(PAGE) == PAGE


@pytest.mark.parametrize("cores", [2, 64])
def test_a_second_machine_saves_what_is_said_at_the_size_that_is_said(cores: int) -> None:
    cost = costs.CorpusCost(costs.bytes_worth_a_second_machine(3600.0, cores))
    assert cost.seconds(cores) - cost.seconds_on(2, cores) == pytest.approx(3600.0)
    measured = 2 / costs.CORPUS.core_seconds_per_mb.value
    assert costs.bytes_worth_a_second_machine(3600.0, cores, measured) == pytest.approx(cost.raw_bytes)


def test_one_process_alone_bounds_what_more_cores_give() -> None:
    cost, alone = costs.CorpusCost(1e12), costs.CORPUS.alone_share.value
    assert cost.seconds_today(1) == pytest.approx(cost.seconds(1))
    assert cost.seconds_today(10**9) == pytest.approx(alone * cost.seconds(1))


def test_the_models_have_the_parameters_that_their_names_say() -> None:
    for name, model in costs.MODELS.items():
        assert model.count.total == pytest.approx(float(name.split()[0]) * 1e6, rel=0.011)
        assert 6 * model.count.body < model.flops.training < 8 * model.count.total
        assert model.step_bytes < costs.TRAINING.gpu_gb.value * 1e9


def test_gpus_divide_the_time_until_gradients_take_longer_than_the_backward_pass() -> None:
    model = costs.MODELS["400 M"]
    one, eight, many = (costs.step_seconds(model, number) for number in (1, 8, 256))
    tokens, peak = costs.TRAINING.step_tokens.value, costs.TRAINING.peak_flops.value
    assert one == (pytest.approx(tokens * model.flops.training / (peak * 0.35)), 0.0)
    assert eight == (pytest.approx(one[0] / 8), 0.0)
    gradients = 2 * 255 / 256 * model.count.fp32_bytes / 50e9
    assert many == (pytest.approx(one[0] / 256), pytest.approx(gradients - 2 / 3 * one[0] / 256))
    assert costs.training_seconds(model, 3 * tokens, 256) == pytest.approx(3 * sum(many))


def test_a_fleet_has_cores_for_twice_its_requests() -> None:
    assert [costs.measured_fleet(rate).num_cores for rate in (355 / 2, 100_000)] == [2, 1127]
    assert costs.rate_of(2) == pytest.approx(355 / 2)
    assert costs.request_milliseconds(costs.MODELS["17 M"]) == costs.measured_milliseconds()


def test_a_number_has_two_digits_and_its_unit() -> None:
    assert [scale.time_of(seconds) for seconds in (89.4, 95.0, 36 * 3600.0)] == ["89 s", "1.6 min", "1.5 days"]
    assert [scale.bytes_of(size) for size in (2.34e12, 999.6e6)] == ["2.3 TB", "1 GB"]
    assert [scale.count_of(number) for number in (10_000.0, 5.9e9)] == ["10,000", "5.9 billion"]
    assert [scale.dollars_of(amount) for amount in (9_870.0, 0.004)] == ["$9,900", "under $0.01"]
