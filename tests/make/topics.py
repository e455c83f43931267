"""A small task that can be learned: which topic a text is about."""

import random
from pathlib import Path

from clozeline.params.reading import read_params
from clozeline.params.tasks import ClassificationParams

PARAMS = read_params(Path(__file__).parents[2] / "params.yaml").finetune["library"]
TOPICS = {"cooking": "salt oven butter flour", "sailing": "mast keel tide rudder", "gardens": "soil seed root weed"}
FILLER = ["the", "a", "of", "and", "with", "then", "before", "after", "under", "over", "some", "more"]


def topic_records(num_per_topic: int) -> list[dict[str, str]]:
    """Return texts in which a few words reveal the topic."""
    draw = random.Random(3)
    return [
        {"text": " ".join(draw.choice(words.split() + FILLER) for _ in range(draw.randint(6, 16))), "topic": topic}
        for _ in range(num_per_topic)
        for topic, words in TOPICS.items()
    ]


def params(**changes: object) -> ClassificationParams:
    values = PARAMS.model_dump() | {
        "splits": None,
        "max_train": None,
        "train_length": None,
        "text_field": "text",
        "label_field": "topic",
        "max_length": 32,
        "batch_size": 16,
        "epochs": 4,
        "optimizer": PARAMS.optimizer.model_dump() | {"learning_rate": 0.01},
        "num_threads": 1,
    }
    return ClassificationParams.model_validate(values | changes)
