"""The tokenizer.json of a package: the model's tokenizer, with truncation and padding as the graph needs them."""

from pathlib import Path

from tokenizers import Tokenizer

from clozeline.artifacts.export.manifest import FILES, SpecialTokens


def write_tokenizer(model: Path, folder: Path, *, max_length: int, special_tokens: SpecialTokens) -> None:
    """Write `folder`/tokenizer.json, made from the tokenizer of the trained model in `model`.

    It truncates texts to `max_length` tokens, including special tokens, and pads them to the longest of the batch.
    Otherwise code that uses tokenizers alone would feed the graph more positions than the model was trained with.
    """
    tokenizer = Tokenizer.from_file(str(model / FILES.tokenizer))
    tokenizer.enable_truncation(max_length)
    pad_id = special_tokens.pad_id
    tokenizer.enable_padding(pad_id=pad_id, pad_token=tokenizer.id_to_token(pad_id))
    tokenizer.save(str(folder / FILES.tokenizer))
