"""`python copy_store.py save FOLDER BUCKET…` copies the objects of the buckets into FOLDER; `restore` copies them back.

A second `save` copies what is new. Neither deletes anything. The address and the keys of the store come from the
environment of AWS clients: AWS_ENDPOINT_URL, AWS_ACCESS_KEY_ID, …
"""

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import boto3


def save(store: Any, bucket: str, folder: Path) -> Iterator[Path]:
    """Download each object that the folder lacks or has in an older state; yield its path."""
    for page in store.get_paginator("list_objects_v2").paginate(Bucket=bucket):
        for found in page.get("Contents", []):
            path = folder / found["Key"]
            written = found["LastModified"].timestamp()
            if path.is_file() and (path.stat().st_size, path.stat().st_mtime) == (found["Size"], written):
                continue
            path.parent.mkdir(parents=True, exist_ok=True)
            part = path.with_name(f"{path.name}.copying")
            store.download_file(bucket, found["Key"], str(part))
            os.utime(part, (written, written))
            part.replace(path)
            yield path


def restore(store: Any, bucket: str, folder: Path) -> Iterator[Path]:
    """Upload each file of the folder; yield its path."""
    for path in sorted(folder.rglob("*")):
        if path.is_file() and path.suffix != ".copying":
            store.upload_file(str(path), bucket, path.relative_to(folder).as_posix())
            yield path


def main(direction: str, folder: Path, buckets: list[str]) -> None:
    store = boto3.client("s3")
    copy = {"save": save, "restore": restore}[direction]
    for bucket in buckets:
        sizes = [path.stat().st_size for path in copy(store, bucket, folder / bucket)]
        sys.stdout.write(f"{bucket}: {len(sizes):,} objects, {sum(sizes) / 1e6:,.1f} MB\n")


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), sys.argv[3:])
