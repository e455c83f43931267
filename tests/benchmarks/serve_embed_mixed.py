"""Texts of mixed lengths embedded in a second, against sentence-transformers with `backend="onnx"` in INT8.

all-MiniLM-L6-v2 on both sides, the same weights, in process, the same number of threads, nothing cached, one call that
does not count before. Ours is the scheduler of the server: the texts come as requests of 32 and are tokenized as they
come, while workers with one thread each run what is of nearly the same length. Theirs is `encode` of all texts with
its own sorting and batches of 32, one session with as many threads; of its two INT8 presets the better one counts.
The cosine says how near the two sides' embeddings are, and theirs in fp32 is what both are compared with.

What sorts 512 texts pads little. A second measurement (`…_in_requests`) has both sides called with 32 texts at a time,
as they come, each call after the answer to the one before: one batch of theirs, padded to its longest text.
"""

import argparse
import os
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from comparison.alternation import Comparison, Rounds, alternate, finish, report_progress
from comparison.machine import available_cores
from comparison.scheduled import REQUEST_TEXTS, Ours
from comparison.sentences import PRESETS, Embed, cosine, mixed_texts, sentence_models, texts_per_second, theirs_onnx


def main() -> None:
    report_progress()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--texts", type=int, default=512)
    chosen = parser.parse_args()
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # as the server has it; and tokenizers warn of our threads else
    num_threads, models, texts = available_cores(), sentence_models(), mixed_texts(chosen.texts)
    ours = Ours(models.ours, num_threads).embed
    theirs = {preset: theirs_onnx(models, num_threads, file) for preset, file in PRESETS.items()}
    exact = theirs_onnx(models, num_threads, "model.onnx")(texts)
    facts: dict[str, Any] = {
        f"cosine_with_fp32_{name}": cosine(side(texts), exact) for name, side in {"ours": ours, **theirs}.items()
    }
    rounds, speeds = _in_turn(ours, theirs, texts, chosen.rounds, in_a_call=len(texts))
    in_requests, speeds_in_requests = _in_turn(ours, theirs, texts, chosen.rounds, in_a_call=REQUEST_TEXTS)
    facts |= in_requests.facts("in_requests", higher_is_better=True)
    facts |= {f"theirs_{name}": speed for name, speed in speeds.items()}
    facts |= {f"theirs_{name}_in_requests": speed for name, speed in speeds_in_requests.items()}
    finish(
        Comparison(
            name="serve_embed_mixed",
            unit="texts/s",
            rounds=rounds,
            higher_is_better=True,
            goal=2.0,
            num_threads=num_threads,
            facts=facts | {"texts": len(texts)},
        )
    )


def _in_turn(
    ours: Embed, theirs: Mapping[str, Embed], texts: Sequence[str], num_rounds: int, *, in_a_call: int
) -> tuple[Rounds, dict[str, list[float]]]:
    """Ours and the better preset of theirs in each round; and each preset's rounds."""
    speeds: dict[str, list[float]] = {preset: [] for preset in theirs}

    def best_of_theirs(_: int) -> float:
        for preset, embed in theirs.items():
            speeds[preset].append(texts_per_second(embed, texts, in_a_call=in_a_call))
        return max(speed[-1] for speed in speeds.values())

    unit = f"texts/s, {in_a_call} in a call"
    return alternate(partial(_speed, ours, texts, in_a_call), best_of_theirs, num_rounds, unit), speeds


def _speed(embed: Embed, texts: Sequence[str], in_a_call: int, _: int) -> float:
    return texts_per_second(embed, texts, in_a_call=in_a_call)


if __name__ == "__main__":
    main()
