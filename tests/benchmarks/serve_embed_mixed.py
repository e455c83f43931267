"""Texts of mixed lengths embedded in a second, against sentence-transformers with `backend="onnx"` in INT8.

all-MiniLM-L6-v2 on both sides, the same weights, in process, the same number of threads, nothing cached, one call that
does not count before. Ours is the scheduler of the server: the texts come as requests of 32 and are tokenized as they
come, while workers with one thread each run what is of nearly the same length. Theirs is `encode` of all texts with
its own sorting and batches of 32, one session with as many threads; of its two INT8 presets the better one counts.
The cosine says how near the two sides' embeddings are, and theirs in fp32 is what both are compared with.
"""

import argparse
import os

from comparison.alternation import Comparison, alternate, finish, report_progress
from comparison.machine import available_cores
from comparison.scheduled import Ours
from comparison.sentences import PRESETS, cosine, mixed_texts, sentence_models, texts_per_second, theirs_onnx


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
    facts = {f"cosine_with_fp32_{name}": cosine(side(texts), exact) for name, side in {"ours": ours, **theirs}.items()}
    speeds: dict[str, list[float]] = {preset: [] for preset in theirs}

    def best_of_theirs(_: int) -> float:
        for preset, embed in theirs.items():
            speeds[preset].append(texts_per_second(embed, texts))
        return max(speed[-1] for speed in speeds.values())

    rounds = alternate(lambda _: texts_per_second(ours, texts), best_of_theirs, chosen.rounds, "texts/s")
    finish(
        Comparison(
            name="serve_embed_mixed",
            unit="texts/s",
            rounds=rounds,
            higher_is_better=True,
            goal=2.0,
            num_threads=num_threads,
            facts=facts | {"texts": len(texts)} | {f"theirs_{name}": speed for name, speed in speeds.items()},
        )
    )


if __name__ == "__main__":
    main()
