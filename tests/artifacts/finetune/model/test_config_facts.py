"""Claim: the export reads from config.json the same facts that the task wrote about its model."""

import pytest
from transformers import BertConfig

from clozeline.records.finetune.scored_items import ConfigFacts


@pytest.mark.parametrize(
    "facts",
    [
        ConfigFacts(),
        ConfigFacts(reads_pairs=True),
        ConfigFacts(decision_threshold=0.0),
        ConfigFacts(reads_pairs=True, decision_threshold=0.25, no_answer_margin=-1.5),
    ],
    ids=str,
)
def test_facts_survive_a_round_trip_through_config_json(facts: ConfigFacts) -> None:
    config = BertConfig()
    facts.add_to(config)
    assert ConfigFacts.of(BertConfig.from_dict(config.to_dict())) == facts


def test_defaults_add_no_key() -> None:
    config = BertConfig()
    ConfigFacts().add_to(config)
    assert config.to_dict() == BertConfig().to_dict()
