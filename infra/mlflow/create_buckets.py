"""Create the buckets named as arguments if the object store lacks them; a second run changes nothing.

The address and the keys of the store come from the environment of AWS clients: AWS_ENDPOINT_URL, AWS_ACCESS_KEY_ID, …
"""

import sys

import boto3
from botocore.exceptions import ClientError


def main(names: list[str]) -> None:
    store = boto3.client("s3")
    for name in names:
        try:
            store.head_bucket(Bucket=name)
        except ClientError as error:
            if error.response["Error"]["Code"] != "404":
                raise
            store.create_bucket(Bucket=name)


if __name__ == "__main__":
    main(sys.argv[1:])
