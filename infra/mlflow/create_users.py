"""Create MLflow's accounts of the worker and of serving if they are missing; a second run changes nothing.

Neither is an administrator: the worker owns what it creates, and serving may only read (`default_permission`).
The administrator's name and password come from MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD, the other
passwords from MLFLOW_WORKER_PASSWORD and MLFLOW_SERVING_PASSWORD. The script speaks plain HTTP, because importing
MLflow takes longer than all of its work.
"""

import base64
import json
import os
import urllib.request
from urllib.error import HTTPError

PASSWORDS = {"worker": "MLFLOW_WORKER_PASSWORD", "serving": "MLFLOW_SERVING_PASSWORD"}


def main() -> None:
    for username, variable in PASSWORDS.items():
        try:
            create_user(username, os.environ[variable])
        except HTTPError as error:
            problem = json.load(error)
            if problem["error_code"] != "RESOURCE_ALREADY_EXISTS":
                raise SystemExit(f"MLflow did not create the account `{username}`: {problem}") from error


def create_user(username: str, password: str) -> None:
    administrator = f"{os.environ['MLFLOW_TRACKING_USERNAME']}:{os.environ['MLFLOW_TRACKING_PASSWORD']}"
    request = urllib.request.Request(
        f"{os.environ['MLFLOW_TRACKING_URI']}/api/2.0/mlflow/users/create",
        data=json.dumps({"username": username, "password": password}).encode(),
        headers={
            "Authorization": "Basic " + base64.b64encode(administrator.encode()).decode(),
            "Content-Type": "application/json",
        },
    )
    with urllib.request.urlopen(request, timeout=60):
        return


if __name__ == "__main__":
    main()
