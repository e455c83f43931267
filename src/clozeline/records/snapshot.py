"""What a snapshot of raw text holds (manifest.json of `data/raw`), and what must not come back (forgotten.lock).

The manifest names the source of a snapshot, and its files in the order in which they were first seen.

Forgotten texts are known only by keyed hashes. A tombstone matches by words, whatever the case, punctuation and white
space around them, so that one form of the text also finds another: raw, cleaned, or inside a longer text. Without the
key, which stays out of git, nobody can find out by guessing whether a text is among them.
"""

import re
import secrets
import unicodedata
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Annotated, Self

from pydantic import Field

from clozeline.records.reading.streams import keyed_hash
from clozeline.records.record import Record
from clozeline.system.errors import ArtifactError
from clozeline.system.files import replacing_file

MANIFEST = "manifest.json"
_TAKE_AGAIN = "restore it (`dvc checkout` or `dvc pull`), or take it again: `dvc repro -f snapshot`"

FORGOTTEN_LOCK = "forgotten.lock"
KEY_FILE = "forgotten.key"
# Fewest words of a text that can be forgotten: fewer would be cut out of texts that have nothing to do with it.
MIN_WORDS = 8
_KEY_BYTES = 32
_FIRST_BYTES = 1
# Few, so that the hashes of the first word and of the first words, which are easier to guess, say little.
_START_BYTES = 2
_MOST_KNOWN = 2**17
_UNSEEN = "\u00ad\u200b-\u200d\u2060\ufeff"
# Characters of Chinese, Japanese and Korean: each counts as a word.
_WITHOUT_SPACES = "\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af"
_WORD = re.compile(rf"[{_WITHOUT_SPACES}]|[^\W{_WITHOUT_SPACES}](?:[^\W{_WITHOUT_SPACES}]|[\u0300-\u036f{_UNSEEN}])*")
_ASCII_WORD = re.compile(r"\w+")
_NOT_SEEN = re.compile(f"[{_UNSEEN}]")
# Punctuation that belongs to the word before it.
_END = re.compile("[.,;:!?\u2026\"'\u201d\u2019\u00bb)\\]]*")


class SnapshotFile(Record):
    """One file of the source, a part of a file of JSON Lines that grew, or one shard of the source's records."""

    # Name within the source, also of each part of a file that grew; a shard is named after its snapshot and number.
    name: str
    sha256: str
    size_bytes: int
    snapshot: Annotated[int, Field(ge=1)]  # number of the first snapshot that holds this content
    revision: str | None = None  # ETag of a remote file
    records: int | None = None  # number of records in a shard; None for a file of the source

    @property
    def object_name(self) -> str:
        """Path of the content below the folder of the snapshot: equal content is kept once."""
        return f"files/{self.sha256[:2]}/{self.sha256[2:]}"


class Snapshot(Record):
    """A source as it was read. It holds no time, so the same source gives the same bytes."""

    kind: str  # kind of the source, as in the params
    place: str  # where the source is: a path, a URL without a password, or the name of a dataset
    revision: str | None = None  # commit of a hub dataset
    raw_bytes: int  # size of the text as the source stores it; 0 if the source does not tell
    forgotten: str | None = None  # digest of the tombstones of the texts that were left out; None: there were none
    files: tuple[SnapshotFile, ...]  # ordered by `snapshot`, then by name

    @property
    def number(self) -> int:
        """Number of the latest snapshot that added content; 0 if there is none."""
        return max((file.snapshot for file in self.files), default=0)

    @classmethod
    def of_folder(cls, folder: Path) -> Self:
        """Read the manifest of the snapshot in `folder`.

        Raises:
            ArtifactError: the manifest is missing or damaged, or a file that it lists is missing or has another size.
        """
        snapshot = cls.read(folder / MANIFEST, do=_TAKE_AGAIN)
        for file in snapshot.files:
            path = folder / file.object_name
            if not path.is_file() or path.stat().st_size != file.size_bytes:
                raise ArtifactError(
                    f"{folder} is not complete: {path} ({file.name}) is missing or not {file.size_bytes:,} bytes",
                    do=_TAKE_AGAIN,
                )
        return snapshot


@dataclass(frozen=True)
class Earlier:
    """The snapshot before the one to take: its manifest, and the place of each of its files."""

    manifest: Snapshot | None = None  # None: there is no snapshot yet
    paths: Mapping[str, Path] = field(default_factory=dict)

    @classmethod
    def among(cls, paths: Mapping[str, Path]) -> Self:
        """Return the snapshot of the files `paths`, by name within its folder; none if one of them is missing."""
        with suppress(ArtifactError):  # written by another version
            manifest = Snapshot.read(paths[MANIFEST]) if MANIFEST in paths else None
            if manifest and all(file.object_name in paths for file in manifest.files):
                return cls(manifest, paths)
        return cls()

    @property
    def files(self) -> tuple[SnapshotFile, ...]:
        return self.manifest.files if self.manifest else ()

    @property
    def number(self) -> int:
        return self.manifest.number if self.manifest else 0

    def path_of(self, file: SnapshotFile) -> Path:
        return self.paths[file.object_name]


class Tombstone(Record):
    """A forgotten text."""

    num_words: Annotated[int, Field(ge=MIN_WORDS)]
    # Keyed hash of its first word. It rules out most places of a text at little cost.
    first: Annotated[str, Field(pattern=f"^[0-9a-f]{{{2 * _FIRST_BYTES}}}$")]
    # Keyed hash of its first `MIN_WORDS` words.
    start: Annotated[str, Field(pattern=f"^[0-9a-f]{{{2 * _START_BYTES}}}$")]
    whole: Annotated[str, Field(pattern=f"^[0-9a-f]{{{2 * _KEY_BYTES}}}$")]  # keyed hash of all its words


class _Lock(Record):
    texts: tuple[Tombstone, ...] = ()


def words_of(text: str) -> list[str]:
    """Return the words of a text in the form in which they are compared."""
    if text.isascii():
        return _ASCII_WORD.findall(text.lower())
    return [
        word.lower() if word.isascii() else unicodedata.normalize("NFKC", _NOT_SEEN.sub("", word)).casefold()
        for word in _WORD.findall(text)
    ]


@dataclass(frozen=True)
class Forgotten:
    """The forgotten texts, with the key of their hashes."""

    tombstones: tuple[Tombstone, ...] = ()
    key: bytes = b""

    @classmethod
    def read(cls, lock: Path) -> Self:
        """Read the file `lock`, and the key beside it.

        Raises:
            ArtifactError: the file is damaged; or it has tombstones, and the key is missing or another one.
        """
        tombstones = _Lock.read(lock, absent=_Lock(), do=f"restore it: `git checkout {FORGOTTEN_LOCK}`").texts
        return cls(tombstones, _read_key(lock)) if tombstones else cls()

    def __bool__(self) -> bool:
        return bool(self.tombstones)

    @property
    def digest(self) -> str | None:
        """What tells these tombstones from others; None for none."""
        hashes = [tombstone.whole for tombstone in self.tombstones]
        return keyed_hash(hashes, b"", _KEY_BYTES) if hashes else None

    def with_text(self, text: str) -> Self:
        """Return these and a tombstone of `text`, which has at least `MIN_WORDS` words."""
        words = words_of(text)
        tombstone = Tombstone(
            num_words=len(words),
            first=self._hash(words[:1], _FIRST_BYTES),
            start=self._hash(words[:MIN_WORDS], _START_BYTES),
            whole=self._hash(words, _KEY_BYTES),
        )
        return type(self)(tuple(dict.fromkeys((*self.tombstones, tombstone))), self.key)

    def cut(self, text: str) -> str:
        """Return `text` without the forgotten texts in it; "" if it had one and no word is left."""
        left = self.cut_out(text)
        return left if left == text or _WORD.search(left) else ""

    def cut_out(self, text: str) -> str:
        """Return `text` without the forgotten texts in it, and with all around them."""
        places = self._places(words_of(text)) if self.tombstones else []
        if not places:
            return text
        spans = [match.span() for match in _WORD.finditer(text)]
        left, end = "", 0
        for place, num_words in places:
            left += text[end : spans[place][0]]
            end = spans[place + num_words - 1][1]
            end += len(_END.match(text, end)[0])  # type: ignore[index]  # it matches everywhere
        return left + text[end:]

    def start_of_rest(self, text: str) -> int:
        """Return where the words at the end of `text` begin that may be the start of a forgotten text."""
        starts = [match.start() for match in _WORD.finditer(text)]
        most = max(tombstone.num_words for tombstone in self.tombstones) - 1
        return starts[-most] if len(starts) > most else 0

    def _places(self, words: Sequence[str]) -> list[tuple[int, int]]:
        """Return where each forgotten text begins in `words`, and how many words it has."""
        firsts = {word for word in set(words) if self._may_begin(word)}
        found: list[tuple[int, int]] = []
        end = 0
        for place in [place for place, word in enumerate(words) if word in firsts] if firsts else ():
            num_words = self._at(words, place) if place >= end else 0
            if num_words:
                found.append((place, num_words))
                end = place + num_words
        return found

    def _may_begin(self, word: str) -> bool:
        if word not in self._known:
            if len(self._known) >= _MOST_KNOWN:
                self._known.clear()
            self._known[word] = self._hash([word], _FIRST_BYTES) in self._firsts
        return self._known[word]

    def _at(self, words: Sequence[str], place: int) -> int:
        """Return the number of words of the longest forgotten text that begins at `place`; 0 if none does."""
        if place + MIN_WORDS > len(words):
            return 0
        for tombstone in self._by_start.get(self._hash(words[place : place + MIN_WORDS], _START_BYTES), ()):
            end = place + tombstone.num_words
            if end <= len(words) and self._hash(words[place:end], _KEY_BYTES) == tombstone.whole:
                return tombstone.num_words
        return 0

    @cached_property
    def _known(self) -> dict[str, bool]:
        """Words seen so far, and whether a forgotten text may begin with each."""
        return {}

    @cached_property
    def _firsts(self) -> frozenset[str]:
        return frozenset(tombstone.first for tombstone in self.tombstones)

    @cached_property
    def _by_start(self) -> Mapping[str, Sequence[Tombstone]]:
        """Tombstones by their first words, the longest first."""
        found: dict[str, list[Tombstone]] = {}
        for tombstone in sorted(self.tombstones, key=lambda one: -one.num_words):
            found.setdefault(tombstone.start, []).append(tombstone)
        return found

    def _hash(self, words: Sequence[str], num_bytes: int) -> str:
        return keyed_hash(words, self.key, num_bytes)


NOTHING = Forgotten()


def with_tombstone(lock: Path, text: str) -> Forgotten:
    """Return the forgotten texts of `lock` and `text`, with its key, or a new one if there is none; write nothing.

    Raises:
        ArtifactError: see `Forgotten.read`.
    """
    known = Forgotten.read(lock)
    if known:
        return known.with_text(text)
    file = lock.with_name(KEY_FILE)
    key = _read_key(lock) if file.exists() else secrets.token_bytes(_KEY_BYTES)
    return Forgotten(key=key).with_text(text)


def write(lock: Path, forgotten: Forgotten) -> None:
    """Write `lock`, and first its key, which only its owner may read."""
    key = lock.with_name(KEY_FILE)
    if not key.exists():
        with replacing_file(key) as beside:
            beside.touch(mode=0o600)
            beside.write_text(f"{forgotten.key.hex()}\n", encoding="ascii")
    _Lock(texts=forgotten.tombstones).write(lock, indent=1)


def _read_key(lock: Path) -> bytes:
    file = lock.with_name(KEY_FILE)
    try:
        key = bytes.fromhex(file.read_text(encoding="ascii"))
        if len(key) == _KEY_BYTES:
            return key
        given = f"{len(key)} bytes"
    except (OSError, ValueError) as error:
        given = " ".join(str(error).split())
    raise ArtifactError(
        f"{file} is not the key of {FORGOTTEN_LOCK}, {_KEY_BYTES} bytes in hex: {given}; its texts would come back",
        do=f"copy {KEY_FILE} from the machine of `clozeline forget`, or from a backup; it is not in git",
    )
