"""Alerts of infra/prefect.yaml: one message for each occurrence, from a real Prefect server to real receivers."""

import email
import email.policy
import socketserver
import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any
from uuid import uuid4

import httpx
import pytest

from tests.infra.prefect_project import Server
from tests.make.processes import wait_for
from tests.make.servers import Webhooks, answering

pytestmark = pytest.mark.deployment


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
        while (line := self.rfile.readline()) and not line.upper().startswith(b"QUIT"):
            if line.upper().startswith(b"DATA"):
                self._say("354 go on")
                lines = iter(self.rfile.readline, b".\r\n")
                mail = email.message_from_bytes(b"".join(lines), policy=email.policy.default)
                parts = [part.get_content() for part in mail.walk() if part.get_content_maintype() == "text"]
                self.server.mails.append("\n".join([str(mail["subject"]), *parts]))
            self._say("250 ok")
        self._say("221 bye")

    def _say(self, answer: str) -> None:
        self.wfile.write(f"{answer}\r\n".encode())


@dataclass(frozen=True)
class Alerting:
    """A server, and those that it tells."""

    server: Server
    webhooks: Webhooks
    mailbox: Mailbox

    def heard(self, run: str = "") -> list[list[str]]:
        """Return the messages about a run that each receiver got."""
        told = (self.webhooks.texts("slack"), self.webhooks.texts("teams"), self.mailbox.mails)
        return [[message for message in messages if run in message] for messages in told]

    def wait_until_heard(self, *runs: str) -> None:
        assert wait_for(lambda: all(all(self.heard(run)) for run in runs), 240), self.heard()


@pytest.fixture(scope="module")
def alerting(server: Server) -> Iterator[Alerting]:
    """The server, deployed with three receivers, once it is known to send alerts."""
    with answering(Webhooks()) as webhooks, answering(Mailbox()) as mailbox:
        address = f"127.0.0.1:{mailbox.server_address[1]}"
        addresses = {
            "CLOZELINE_SLACK_URL": webhooks.url("slack"),
            "CLOZELINE_TEAMS_URL": webhooks.url("teams"),
            "CLOZELINE_EMAIL_URL": f"mailto://{address}?from=a@example.org&to=b@example.org",
        }
        server.deploy(variables=addresses)
        made = Alerting(server, webhooks, mailbox)

        def is_told() -> bool:  # the server knows a new automation only after some seconds
            ended(server, "FAILED", "Failed", "is anyone there?")
            time.sleep(1)
            return all(made.heard())

        assert wait_for(is_told, 120)
        time.sleep(2)
        webhooks.accepted.clear()
        mailbox.mails.clear()
        yield made


def ended(server: Server, kind: str, name: str, message: str, deployment: str = "nightly") -> str:
    """Make a run of the deployment that is in this state; return its name."""
    run = create_run(server, deployment, {"type": "PENDING"})  # a scheduled run would soon be late
    for state in ({"type": "RUNNING"}, {"type": kind, "name": name, "message": message}):
        post(server, f"/flow_runs/{run['id']}/set_state", {"state": state, "force": True})
    return str(run["name"])


def create_run(server: Server, deployment: str, state: dict[str, Any]) -> Any:
    deployment_id = server.deployments()[deployment]["id"]
    body = {"state": state, "name": f"run-{uuid4().hex}"}
    return post(server, f"/deployments/{deployment_id}/create_flow_run", body)


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


def test_each_event_sends_one_message_to_each_receiver(alerting: Alerting) -> None:
    why = 'why: <2 of 3> & "more"'
    runs = {ended(alerting.server, kind, name, why, of): f"{of}: {name}" for of, kind, name in OCCURRENCES}
    good = ended(alerting.server, "COMPLETED", "Completed", "a good night")
    last = ended(alerting.server, "FAILED", "Failed", "the last one")
    alerting.wait_until_heard(*runs, last)  # messages are sent side by side, so the last one may be heard first
    for run, subject in runs.items():
        for messages in alerting.heard(run):
            assert [subject in message for message in messages] == [True]
    assert alerting.heard(good) == [[], [], []]
    slack = [message for where, message in alerting.webhooks.accepted if where == "/slack"]
    assert all(set(message) == {"text"} for message in slack)
    assert sum(why in message["text"] for message in slack) == len(OCCURRENCES)
    teams = [message for where, message in alerting.webhooks.accepted if where == "/teams"]
    assert {card["attachments"][0]["contentType"] for card in teams} == {"application/vnd.microsoft.card.adaptive"}


def test_a_late_run_sends_one_message(alerting: Alerting) -> None:
    """No worker is there to start it. The test's server calls a run late after a second, not after ten minutes."""
    due = {"type": "SCHEDULED", "state_details": {"scheduled_time": datetime.now(UTC).isoformat()}}
    run = create_run(alerting.server, "nightly", due)["name"]
    alerting.wait_until_heard(run)
    time.sleep(6)  # the server looks for late runs every 5 s
    assert [["nightly: Late" in message for message in messages] for messages in alerting.heard(run)] == [[True]] * 3


def test_a_receiver_that_answers_500_is_retried_and_affects_no_other(alerting: Alerting) -> None:
    webhooks = alerting.webhooks
    webhooks.num_refused, webhooks.refuse_next = 0, 3
    run = ended(alerting.server, "FAILED", "Failed", "in an outage")
    alerting.wait_until_heard(run)
    time.sleep(1)
    assert (webhooks.num_refused, [len(messages) for messages in alerting.heard(run)]) == (3, [1, 1, 1])
    webhooks.num_refused, webhooks.refuse_next = 0, 1_000
    unheard = ended(alerting.server, "FAILED", "Failed", "nobody hears it but the mailbox")
    assert wait_for(lambda: bool(alerting.heard(unheard)[2]) and webhooks.num_refused >= 8, 240)
    webhooks.refuse_next = 0
    alerting.wait_until_heard(ended(alerting.server, "FAILED", "Failed", "the next alert"))


def test_webhook_addresses_stay_secret_and_survive_a_deployment_without_them(alerting: Alerting) -> None:
    server, address = alerting.server, alerting.webhooks.url("slack")
    shown = server.api.post("/block_documents/filter", json={}).raise_for_status().text
    assert ("clozeline-slack" in shown, address in shown) == (True, False)
    assert address not in server.api.post("/automations/filter", json={}).text
    server.deploy()
    alerting.wait_until_heard(ended(server, "FAILED", "Failed", "after another deployment"))


def test_an_unsupported_receiver_address_is_refused_before_anything_is_deployed(server: Server) -> None:
    address = "hooks.slack.com/x"
    with pytest.raises(AssertionError, match="ended with 2") as refused:
        server.deploy(variables={"CLOZELINE_SLACK_URL": address})
    told = str(refused.value)
    assert [part in told for part in ("CLOZELINE_SLACK_URL", address, "Deploying")] == [True, False, False]
