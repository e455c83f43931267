"""Milliseconds to embed one short text, compared with sentence-transformers' `backend="onnx"` in INT8.

Both sides use all-MiniLM-L6-v2 with the same weights, ONNX Runtime and number of threads in one session, each in a
process without HTTP and without cached answers, after a warm-up of as many calls as a round has. Texts of 6 to 12 words
come one after another, different ones in each round; the figure of a round is the median of its calls. A text is
tokenized in the calling thread. The better of sentence-transformers' two INT8 presets counts in each round.
"""

from clozeline.inference.language import Embedder
from clozeline.inference.package import load
from comparison.elsewhere import median_milliseconds, tokenize_as_the_server
from comparison.frame import available_cores, options, report
from comparison.our_package import in_turn, verdict
from comparison.sentences import Embed, SentenceModels, cosine, sentence_models, short_texts, theirs_onnx
from comparison.stock_onnx import PRESETS

NAME = "serve_embed_single"


def main() -> None:
    parser = options(__doc__, rounds=5, texts=300)
    parser.add_argument("--threads", type=int, default=available_cores(), help="of a session, on both sides")
    chosen = parser.parse_args()
    tokenize_as_the_server(chosen.threads)
    models, texts = sentence_models(), short_texts(chosen.texts)
    ours = _ours(models, chosen.threads)
    theirs = {preset: theirs_onnx(models, chosen.threads, file) for preset, file in PRESETS.items()}
    facts = {f"cosine_of_ours_and_{preset}": cosine(ours(texts), embed(texts)) for preset, embed in theirs.items()}
    draws = [short_texts(chosen.texts, draw) for draw in range(1, chosen.rounds + 1)]
    rounds, presets = in_turn(NAME, ours, theirs, draws, median_milliseconds)
    facts |= verdict(models.ours) | {"texts": len(texts)} | presets.facts()
    report(NAME, rounds, chosen.threads, facts)


def _ours(models: SentenceModels, num_threads: int) -> Embed:
    model = load(models.ours, num_threads=num_threads)
    assert isinstance(model, Embedder)
    return lambda texts: model.embed(texts, truncate=True)
