"""Stage `tokenize`: train the tokenizer on the training split; write the training and validation splits as shards."""

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from clozeline.cluster.ledger import Ledger, open_workers
from clozeline.params.text import TokenizeParams
from clozeline.records import clean_text, token_metrics
from clozeline.records.reading.tokens import INFO_NAME, TokensInfo, documents_path
from clozeline.system.files import replacing_folder
from clozeline.system.machine import give_back_freed, share_one_heap
from clozeline.tokenizing import earlier_ids, encoding, packing, shards, vocabularies
from clozeline.tokenizing.tokenizer.folder import OpenTokenizer, save, save_existing

_LOG = logging.getLogger(__name__)
# Knobs that an existing tokenizer does not fix.
_ALWAYS_USED = {"algorithm", "existing", "shard_tokens"}
# Bytes of text from which several processes are faster than this one: each takes a second to start.
_WORTH_PROCESSES = 64_000_000


def run(
    params: TokenizeParams,
    *,
    clean: Path,
    tokenizer: Path,
    out: Path,
    metrics: Path,
    work: Path,
    start: Path | None = None,
) -> None:
    """Write the tokenizer to `tokenizer`, and the shards of `clean`'s training and validation splits to `out`.

    `work` records what is done, and keeps the ids of texts for later runs; it may be removed at any time. `start`:
    folder of the encoder that pre-training continues from; its tokenizer is kept.

    Raises:
        ArtifactError: a file of `clean` is missing or damaged.
        DataError: the text is empty, or the given tokenizer cannot be used.
    """
    files = {split: clean_text.file_of(clean, split) for split in ("train", "validation")}
    parts = {
        split: (path, shards.partitions_of(path)) for split, path in files.items()
    }  # refuses a damaged file at once
    _, training = parts["train"]
    text_bytes = sum(partition.text_bytes for partition in training)
    share_one_heap()
    with (
        open_workers(work, None if text_bytes >= _WORTH_PROCESSES else 1) as workers,
        replacing_folder(tokenizer) as tokenizer_beside,
        replacing_folder(out) as out_beside,
    ):
        ledger = Ledger(work, packing.code_of_tasks(), workers)
        kept = {} if start is None else {"algorithm": "existing", "existing": str(start)}
        _make_tokenizer(params.model_copy(update=kept), training, tokenizer_beside, ledger)
        give_back_freed()  # packing does not need the training's memory
        opened = OpenTokenizer.open(tokenizer_beside)
        earlier = earlier_ids.EarlierIds.open(ledger, opened.sha256)
        packed = _pack(parts, opened, params.shard_tokens, out_beside, earlier)
    train, validation = (_figures(packed[split].count, opened) for split in parts)
    token_metrics.TokenMetrics(vocab_size=opened.vocab_size, train=train, validation=validation).write(metrics)
    earlier.keep([one for split in parts for one in packed[split].encoded])


def _make_tokenizer(params: TokenizeParams, train: Sequence[shards.Partition], folder: Path, ledger: Ledger) -> None:
    if params.existing is None:
        save(vocabularies.learn(params, train, ledger), folder)
        return
    fixed = sorted(TokenizeParams.model_fields.keys() - _ALWAYS_USED)
    _LOG.info("%s come from %s, not from params.yaml", ", ".join(fixed), params.existing)
    save_existing(params.existing, folder)


def _pack(
    parts: Mapping[str, tuple[Path, Sequence[shards.Partition]]],
    opened: OpenTokenizer,
    shard_tokens: int,
    folder: Path,
    earlier: earlier_ids.EarlierIds,
) -> dict[str, packing.Packed]:
    packed = {}
    for split, (path, partitions) in parts.items():
        packed[split] = packing.pack(partitions, opened, folder, split, shard_tokens, earlier.ledger, earlier)
        _say_what_looked_special(path, packed[split].count)
        packing.write_document_keys(path, documents_path(folder, split))
    num_texts = sum(one.count.num_documents for one in packed.values())
    _LOG.info("%d of %d texts encoded by earlier runs", sum(one.num_known for one in packed.values()), num_texts)
    TokensInfo.of(
        vocab_size=opened.vocab_size,
        tokenizer_sha256=opened.sha256,
        special_ids=opened.special_ids,
        splits={split: one.info for split, one in packed.items()},
    ).write(folder / INFO_NAME)
    return packed


def _say_what_looked_special(path: Path, count: encoding.PackingCount) -> None:
    """Warn of special tokens in texts. Only masking makes masks; one written out in a text must not count as a mask."""
    if count.special_strings_in_text:
        _LOG.warning(
            "%s: texts contain [MASK] or another special token in %d places: they are packed as ordinary text, or "
            "dropped where the vocabulary cannot spell them (%d tokens)",
            *(path, count.special_strings_in_text, count.tokens_dropped),
        )


def _figures(count: encoding.PackingCount, opened: OpenTokenizer) -> token_metrics.SplitTokens:
    unknown = int(count.uses_V[opened.special_ids.unk]) if opened.special_ids.unk is not None else 0
    ordinary_V = np.delete(count.uses_V, opened.special_ids.every)
    return token_metrics.SplitTokens(
        documents=count.num_documents,
        empty_documents=count.num_empty_documents,
        text_bytes=count.text_bytes,
        tokens_in=count.tokens_in,
        tokens_packed=count.tokens_packed,
        tokens_dropped=count.tokens_dropped,
        bytes_per_token=count.text_bytes / max(count.tokens_packed, 1),
        unknown_tokens=unknown,
        unknown_rate=unknown / max(count.tokens_packed, 1),
        vocabulary_use=int((ordinary_V > 0).sum()) / max(len(ordinary_V), 1),
        special_strings_in_text=count.special_strings_in_text,
    )
