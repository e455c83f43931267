"""Labelled data for the benchmarks of fine-tuning: known sets if they lie next to the project, else generated ones.

Generated ones can be learned, but not perfectly: some labels are wrong, some questions have no answer. Lengths differ
as in real text: most are short, few are long.
"""

import json
import os
import random
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from clozeline.records.reading.files import Fields
from clozeline.records.reading.streams import identity_of
from clozeline.tasks import formats
from clozeline.tasks.selection import Reader, read_records
from comparison.stages import KEPT, PROJECT

# Folder with folders like `sentence-polarity`, used instead of the one next to the project.
DATA_VARIABLE = "CLOZELINE_BENCHMARK_LABELLED"
NO_DATA = f"there is no such data beside the project, and {DATA_VARIABLE} names none"
TAGGED = {"tokens_field": "tokens", "tags_field": "ner_tags"}
ASKED = {"question_field": "question", "context_field": "context", "answers_field": "answers"}
SCORED = {"score_field": "score", "first_field": "sentence1", "second_field": "sentence2"}
# Set → its file, the field of the label, and files by label if the label is the file.
_ONE_LABEL: Mapping[str, tuple[str, str, Mapping[str, str] | None]] = {
    "banking77": ("train.csv", "category", None),
    "sentence-polarity": ("", "label", {"negative": "rt-polarity.neg", "positive": "rt-polarity.pos"}),
    "subjectivity": ("", "label", {"objective": "plot.tok.gt9.5000", "subjective": "quote.tok.gt9.5000"}),
    "sci-cite": ("train.txt", "label", None),
}
Item = dict[str, Any]
# Part → number of items; parts are filled in this order.
Sizes = Mapping[str, int]


@dataclass(frozen=True)
class Parts:
    """train.jsonl, validation.jsonl and test.jsonl in a folder: no text is in two of them, or twice in one."""

    data: str  # name of the data set
    folder: Path

    def read(self, part: str) -> list[Item]:
        lines = (self.folder / f"{part}.jsonl").read_text(encoding="utf-8").splitlines()
        return [json.loads(line) for line in lines]


def known_data() -> Path | None:
    """Return the folder with known sets; None if this machine has none."""
    given = os.environ.get(DATA_VARIABLE)
    folder = Path(given) if given else PROJECT.parent / "shared" / "data"
    return folder if folder.is_dir() else None


def few_label_sets() -> list[str]:
    """Return the names of the sets of single texts with one label; without known sets a generated one."""
    return ["generated"] if known_data() is None else list(_ONE_LABEL)


def few_label_parts(name: str, sizes: Sizes, draw: int) -> Parts:
    """Return parts of a set; each draw gives others."""
    folder = known_data()
    if folder is None:
        name, items = "generated", generated(sizes, draw)
    else:
        file, label, files = _ONE_LABEL[name]
        fields = {"text_field": "text", "label_field": label}
        read = _items(folder / name / file, fields, formats.label_readers(files))
        items = [{"text": item["text"], "label": item[label]} for item in read]
    return written(f"few-{draw}", name, cut(items, sizes, lambda it: it["text"], draw=draw))


def entity_parts(sizes: Sizes, draw: int = 0) -> Parts:
    """NCBI disease has parts of its own: its development part is the test part here."""
    folder = known_data()
    if folder is None:
        return written(f"entities-{draw}", "generated", cut(generated(sizes, draw), sizes, _words, draw=draw))
    judged, learned = (tagged_items(folder / "ncbi-disease" / file) for file in ("dev.txt", "train.txt"))
    test = cut(judged, {"test": sizes["test"]}, _words, draw=draw)
    known = {identity_of(_words(item)) for item in judged}
    rest = [item for item in learned if identity_of(_words(item)) not in known]
    others = {part: size for part, size in sizes.items() if part != "test"}
    return written(f"entities-{draw}", "ncbi-disease", test | cut(rest, others, _words, draw=draw))


def tagged_items(file: Path) -> list[Item]:
    """Return sentences with tags in columns, as NCBI disease has them."""
    return _items(file, TAGGED, formats.tag_readers(0, -1))


def question_parts(sizes: Sizes) -> Parts:
    """Questions with an answer, as in SQuAD 1.1: from few unanswerable ones, both sides learn to answer nothing."""
    folder = known_data()
    if folder is None:
        name, items = "generated", generated(sizes, 0)
    else:
        name = "squad2-subset"
        items = _items(folder / name / "dev-12-articles.json", ASKED, {".json": formats.read_squad})
    answerable = [item for item in items if item["answers"]["text"]]
    return written("questions", name, cut(answerable, sizes, lambda it: it["context"], lambda it: it["question"]))


def scored_pairs() -> list[Item]:
    """Return the sentence pairs of STS 2016 with human scores; none if the data set is missing."""
    folder = known_data()
    if folder is None:
        return []
    readers = formats.pair_readers(list(SCORED.values()))
    pairs = read_records(folder / "sts2016" / "postediting.test.tsv", SCORED, readers)
    scored = [(pair.number("score"), pair) for pair in pairs]
    return [dict(pair.values) | {"score": score} for score, pair in scored if score is not None]


def cut(
    items: Iterable[Item],
    sizes: Sizes,
    group_of: Callable[[Item], str],
    own: Callable[[Item], str] = lambda _: "",
    draw: int = 0,
) -> dict[str, list[Item]]:
    """Return parts of `sizes` items, drawn at random.

    Args:
        items: the items to draw from; only the first item of each text is used.
        sizes: number of items of each part.
        group_of: returns the text that items may share; items that share it are in one part.
        own: returns the text that tells items of one group apart.
        draw: seed of the choice.
    """
    groups: dict[str, dict[str, Item]] = {}
    for item in items:
        groups.setdefault(identity_of(group_of(item)), {}).setdefault(identity_of(own(item)), item)
    names = sorted(groups)
    random.Random(draw).shuffle(names)
    parts: dict[str, list[Item]] = {part: [] for part in sizes}
    for part, size in sizes.items():
        while names and len(parts[part]) < size:
            parts[part].extend(groups[names.pop()].values())
    return parts


def write_lines(path: Path, items: Iterable[Item]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(item) + "\n" for item in items), encoding="utf-8")
    return path


def written(task: str, data: str, parts: Mapping[str, list[Item]]) -> Parts:
    """Write the parts of a task, and return them."""
    folder = KEPT / "labelled" / f"{task}-{data}"
    for part, items in parts.items():
        write_lines(folder / f"{part}.jsonl", items)
    return Parts(data, folder)


def _items(path: Path, fields: Fields, readers: Mapping[str, Reader]) -> list[Item]:
    return [dict(record.values) for record in read_records(path, fields, readers)]


def _words(item: Item) -> str:
    return " ".join(item["tokens"])


_PRAISE_AND_BLAME = (
    ("positive", ["fine", "warm", "clever", "bright", "moving", "funny", "rich", "honest", "graceful", "tender"]),
    ("negative", ["dull", "flat", "tired", "clumsy", "empty", "loud", "shallow", "stale", "lazy", "hollow"]),
)
_FIRST = ["anna", "boris", "clara", "david", "elena", "frank", "greta", "henry", "irene", "jakob", "karla", "louis"]
_LAST = ["smith", "miller", "weaver", "fisher", "baker", "carter", "turner", "cooper", "mason", "hunter"]
_PLACES = ["paris", "berlin", "madrid", "london", "oslo", "dublin", "lisbon", "vienna", "prague", "athens"]
_CRAFTS = ["bread", "shoes", "violins", "clocks", "boats", "lamps", "chairs", "kites", "maps", "hats"]
_TAGS = ("B-person", "I-person", "O", "O", "B-place", "O", "O", "O", "O", "O")
_WRONG_SHARE = 0.1


def generated(sizes: Sizes, seed: int) -> list[Item]:
    """Return items for parts of these sizes: texts about people, their homes and what they make, well or badly.

    Each text, with the tags of its names, is there four times, with other questions, one of them unanswerable.
    """
    return list(_generated(8 * sum(sizes.values()), random.Random(f"generated {seed}")))


def _generated(num_items: int, draw: random.Random) -> Iterator[Item]:
    for _ in range(num_items // 4):
        label, words = draw.choice(_PRAISE_AND_BLAME)
        other = next(name for name, _ in _PRAISE_AND_BLAME if name != label)
        *people, stranger = draw.sample(_FIRST, min(2 + int(draw.expovariate(1 / 2)), 10))
        facts = [(who, draw.choice(_PLACES), draw.choice(_CRAFTS)) for who in people]
        clauses = [
            f"{who} {draw.choice(_LAST)} lives in {place} and makes {draw.choice(words)} {craft} ."
            for who, place, craft in facts
        ]
        text = " ".join(clauses)
        item: Item = {"text": text, "label": other if draw.random() < _WRONG_SHARE else label, "context": text}
        item |= {"tokens": text.split(), "ner_tags": [*_TAGS] * len(clauses)}
        who, place, craft = draw.choice(facts)
        several = draw.choice(facts)
        for question, found in (
            (f"where does {who} live ?", [place]),
            (f"what does {who} make ?", [craft]),
            (f"where is {several[0]} at home ?", [several[1]]),
            (f"where does {stranger} live ?", []),
        ):
            starts = [text.index(answer, text.index(f"{question.split()[2]} ")) for answer in found]
            yield item | {"question": question, "answers": {"text": found, "answer_start": starts}}
