"""Alerts of infra/prefect.yaml: one message for each occurrence, from a real Prefect server to real receivers."""

import email
import email.policy
import socketserver
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any
from uuid import uuid4

import httpx
import pytest

from tests.infra.prefect_project import Server
from tests.make.processes import wait_for
from tests.make.servers import Webhooks, answering

pytestmark = pytest.mark.deployment

PENDING = {"state": {"type": "PENDING"}}  # a scheduled run would soon be late


class Mailbox(socketserver.ThreadingTCPServer):
    """An SMTP server that keeps each mail."""

    daemon_threads = True
    allow_reuse_address = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Mail)
        self.mails: list[str] = []


class _Mail(socketserver.StreamRequestHandler):
    server: Mailbox

    def handle(self) -> None:
        self._say("220 here")
        while line := self.rfile.readline():
            command = line[:4].upper().strip()
            if command == b"DATA":
                self._say("354 go on")
                lines = list(iter(self.rfile.readline, b".\r\n"))
                self.server.mails.append(_readable(b"".join(lines)))
            self._say("221 bye" if command == b"QUIT" else "250 ok")
            if command == b"QUIT":
                return

    def _say(self, answer: str) -> None:
        self.wfile.write(f"{answer}\r\n".encode())


def _readable(mail: bytes) -> str:
    message = email.message_from_bytes(mail, policy=email.policy.default)
    parts = [part.get_content() for part in message.walk() if part.get_content_maintype() == "text"]
    return "\n".join([str(message["subject"]), *parts])


@pytest.fixture(scope="module")
def webhooks() -> Iterator[Webhooks]:
    with answering(Webhooks()) as server:
        yield server


@pytest.fixture(scope="module")
def mailbox() -> Iterator[Mailbox]:
    with answering(Mailbox()) as server:
        yield server


@pytest.fixture(scope="module")
def alerting(server: Server, webhooks: Webhooks, mailbox: Mailbox) -> Server:
    """The server, deployed with three receivers, once it is known to send alerts."""
    addresses = {
        "CLOZELINE_SLACK_URL": webhooks.url("slack"),
        "CLOZELINE_TEAMS_URL": webhooks.url("teams"),
        "CLOZELINE_EMAIL_URL": f"mailto://127.0.0.1:{mailbox.server_address[1]}?from=a@example.org&to=b@example.org",
    }
    server.deploy(variables=addresses)

    def is_told() -> bool:  # the server knows a new automation only after some seconds
        ended(server, "FAILED", "Failed", "is anyone there?")
        time.sleep(1)
        return bool(webhooks.texts("slack") and webhooks.texts("teams") and mailbox.mails)

    assert wait_for(is_told, 120)
    time.sleep(2)
    webhooks.accepted.clear()
    mailbox.mails.clear()
    return server


def ended(server: Server, kind: str, name: str, message: str, deployment: str = "nightly") -> str:
    """Make a run of the deployment that is in this state; return its name."""
    run = create_run(server, deployment, PENDING)
    for state in ({"type": "RUNNING"}, {"type": kind, "name": name, "message": message}):
        post(server, f"/flow_runs/{run['id']}/set_state", {"state": state, "force": True})
    return str(run["name"])


def create_run(server: Server, deployment: str, body: dict[str, Any]) -> Any:
    deployment_id = server.deployments()[deployment]["id"]
    return post(server, f"/deployments/{deployment_id}/create_flow_run", {**body, "name": f"run-{uuid4().hex}"})


def post(server: Server, path: str, body: dict[str, Any]) -> Any:
    """Send it again while the server's database is busy, as Prefect's own client does."""
    for _ in range(20):
        answer = server.api.post(path, json=body)
        if answer.status_code != httpx.codes.SERVICE_UNAVAILABLE:
            break
        time.sleep(1)
    return answer.raise_for_status().json()


OCCURRENCES = [
    ("nightly", "FAILED", "Failed"),
    ("nightly", "CRASHED", "Crashed"),
    ("nightly", "FAILED", "Held"),
    ("nightly", "FAILED", "ContractBroken"),
    ("drift", "FAILED", "Drifted"),
]


def test_each_event_sends_one_message_to_each_receiver(alerting: Server, webhooks: Webhooks, mailbox: Mailbox) -> None:
    why = 'why: <2 of 3> & "more"'
    runs = {ended(alerting, kind, name, why, of): f"{of}: {name}" for of, kind, name in OCCURRENCES}
    good = ended(alerting, "COMPLETED", "Completed", "a good night")
    last = ended(alerting, "FAILED", "Failed", "the last one")
    failed = [*runs, last]  # messages are sent side by side, so the last one may be heard first
    for heard in heard_by(webhooks, mailbox):
        assert wait_for(lambda heard=heard: all(about(run, heard()) for run in failed), 240), heard()
        for run, subject in runs.items():
            (message,) = about(run, heard())
            assert subject in message
        assert about(good, heard()) == []
    slack = [message for where, message in webhooks.accepted if where == "/slack"]
    assert all(set(message) == {"text"} for message in slack)
    assert sum(why in message["text"] for message in slack) == len(OCCURRENCES)
    (card,) = {message["attachments"][0]["contentType"] for where, message in webhooks.accepted if where == "/teams"}
    assert card == "application/vnd.microsoft.card.adaptive"


def heard_by(webhooks: Webhooks, mailbox: Mailbox) -> list[Callable[[], list[str]]]:
    return [lambda: webhooks.texts("slack"), lambda: webhooks.texts("teams"), lambda: mailbox.mails]


def about(run: str, messages: list[str]) -> list[str]:
    """Return the messages that name this run."""
    return [message for message in messages if run in message]


def test_a_late_run_sends_one_message(alerting: Server, webhooks: Webhooks) -> None:
    """No worker is there to start it. The test's server calls a run late after a second, not after ten minutes."""
    due = {"state": {"type": "SCHEDULED", "state_details": {"scheduled_time": datetime.now(UTC).isoformat()}}}
    run = create_run(alerting, "nightly", due)["name"]
    assert wait_for(lambda: bool(about(run, webhooks.texts("slack"))), 240)
    time.sleep(6)  # the server looks for late runs every 5 s
    (message,) = about(run, webhooks.texts("slack"))
    assert "nightly: Late" in message


def test_a_receiver_that_answers_500_is_retried_and_affects_no_other(
    alerting: Server, webhooks: Webhooks, mailbox: Mailbox
) -> None:
    webhooks.num_refused, webhooks.refuse_next = 0, 3
    run = ended(alerting, "FAILED", "Failed", "in an outage")
    for path in ("slack", "teams"):
        assert wait_for(lambda path=path: len(about(run, webhooks.texts(path))) == 1, 240)
    time.sleep(1)
    assert webhooks.num_refused == 3
    assert [len(about(run, webhooks.texts(path))) for path in ("slack", "teams")] == [1, 1]
    webhooks.num_refused, webhooks.refuse_next = 0, 1_000
    unheard = ended(alerting, "FAILED", "Failed", "nobody hears it but the mailbox")
    assert wait_for(lambda: bool(about(unheard, mailbox.mails)) and webhooks.num_refused >= 8, 240)
    webhooks.refuse_next = 0
    heard = ended(alerting, "FAILED", "Failed", "the next alert")
    for messages in heard_by(webhooks, mailbox):
        assert wait_for(lambda messages=messages: len(about(heard, messages())) == 1, 240)


def test_webhook_addresses_stay_secret_and_survive_a_deployment_without_them(
    alerting: Server, webhooks: Webhooks
) -> None:
    def shown() -> str:
        return alerting.api.post("/block_documents/filter", json={}).raise_for_status().text

    assert "clozeline-slack" in shown()
    assert webhooks.url("slack") not in shown()
    assert webhooks.url("slack") not in alerting.api.post("/automations/filter", json={}).text
    alerting.deploy()
    run = ended(alerting, "FAILED", "Failed", "after another deployment")
    assert wait_for(lambda: bool(about(run, webhooks.texts("slack")) and about(run, webhooks.texts("teams"))), 240)


@pytest.mark.parametrize(
    ("variable", "address"), [("CLOZELINE_SLACK_URL", "hooks.slack.com/x"), ("CLOZELINE_EMAIL_URL", "ann@example.org")]
)
def test_an_unsupported_receiver_address_is_refused_before_anything_is_deployed(
    server: Server, variable: str, address: str
) -> None:
    with pytest.raises(AssertionError, match="ended with 2") as refused:
        server.deploy(variables={variable: address})
    assert variable in str(refused.value)
    assert address not in str(refused.value)
    assert "Deploying" not in str(refused.value)
