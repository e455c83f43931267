"""Texts whose topic is revealed by a few of their words, out of the many words of each topic."""

import random
from pathlib import Path

from tests.make.tasks import write_records

TOPICS = {
    "cooking": "salt oven butter flour pan dough sugar spoon pepper broth yeast cream",
    "sailing": "mast keel tide rudder anchor deck sail harbour rope hull wind crew",
    "gardens": "soil seed root weed spade hedge lawn rose bulb fence pond moss",
}
FILLER = ["the", "a", "of", "and", "with", "then", "under", "over"]
ABOUT = "this text is about"
SPLITS = {"train": "train.jsonl", "validation": "validation.jsonl", "test": "test.jsonl"}


def topical(num_texts: int, seed: int) -> list[dict[str, str]]:
    """Return texts of three words drawn from the twelve of their topic, and four other words."""
    draw = random.Random(seed)
    records = []
    for number in range(num_texts):
        topic = sorted(TOPICS)[number % len(TOPICS)]
        words = [*draw.sample(TOPICS[topic].split(), 3), *draw.choices(FILLER, k=4)]
        draw.shuffle(words)
        records.append({"text": " ".join(words), "label": topic})
    return records


def other_topic(topic: str, draw: random.Random) -> str:
    return draw.choice([other for other in sorted(TOPICS) if other != topic])


def write_few_labelled(folder: Path) -> None:
    """Write `SPLITS` into `folder`: nine training texts, which have few of the topic words, and many test texts."""
    for seed, (part, num_texts) in enumerate({"train": 9, "validation": 6, "test": 150}.items()):
        write_records(folder / SPLITS[part], topical(num_texts, seed))
