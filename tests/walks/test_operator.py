"""The operator's walk: docs/operations.md and docs/accounts.md, from `check` to the shutdown."""

from __future__ import annotations

import re
import shlex
import subprocess
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import openai
import pytest
from playwright.sync_api import Browser, Page, expect

from tests.bodies import TOOLS
from tests.deploy.prometheus import Prometheus, running
from tests.drills.processes import free_port, gateway
from tests.publishing import make_artifact
from tests.sandbox import run_in_thread
from tests.serving import WAIT_S, wait_for
from tests.walks.screens import Screens, Terminal

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
OPERATIONS = (ROOT / "docs" / "operations.md").read_text()
ADMIN, METRICS = "SWITCHCRAFT_ADMIN_KEY", "SWITCHCRAFT_METRICS_KEY"
CONFIG = """\
model_list:
  - model_name: claude-sonnet
    litellm_params:
      model: anthropic/claude-sonnet-4-5
      api_key: os.environ/ANTHROPIC_API_KEY
      api_base: {anthropic}
  - model_name: gpt-4.1-mini
    litellm_params:
      model: openai/gpt-4.1-mini
      api_key: os.environ/OPENAI_API_KEY
      api_base: {openai}
router:
  publication: published
  chat_model: gpt-4.1-mini
server:
  max_body_bytes: 10000000
database:
  url: sqlite:///{folder}/switchcraft.db
keys:
  admin: os.environ/SWITCHCRAFT_ADMIN_KEY
  metrics: os.environ/SWITCHCRAFT_METRICS_KEY
"""


def documented(page: str, beginning: str) -> str:
    """Return the first command of a page's shell blocks that begins so, without its comment."""
    blocks = re.findall(r"^```(?:sh|shell)\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    lines = (line.removeprefix(".venv/bin/") for block in blocks for line in block.splitlines())
    command: str = next(line for line in lines if line.startswith(beginning))
    return command.partition("  #")[0].strip()


class Operator(Terminal):
    """An operator with a terminal and a gateway in its folder."""

    def __init__(self, folder: Path, screens: Screens, port: int) -> None:
        self.url = f"http://127.0.0.1:{port}"
        self.log = folder / f"gateway-{port}.log"
        self.config = folder / "gateway.yaml"
        keys = {"ANTHROPIC_API_KEY": "sk-ant-any", "OPENAI_API_KEY": "sk-any"}
        super().__init__(screens, folder, GATEWAY=self.url, **keys)

    def write(self, text: str) -> None:
        """Write the configuration in one step, as an editor does."""
        partial = self.config.with_suffix(".partial")
        partial.write_text(text)
        partial.replace(self.config)

    def logged(self, title: str, pattern: str) -> None:
        """Wait until the log has a line, and take a picture of its end."""
        wait_for(lambda: re.search(pattern, self.log.read_text()), f"{pattern} is logged")
        lines = self.log.read_text().splitlines()
        at = max(number for number, line in enumerate(lines) if re.search(pattern, line))
        self.screens.terminal(f"tail gateway.log  # {title}", "\n".join(lines[at - 6 : at + 4]))

    def client(self, key: str) -> openai.OpenAI:
        """Return a client with a key."""
        return openai.OpenAI(base_url=f"{self.url}/v1", api_key=key, max_retries=0)

    def ask(self, key: str, count: int, model: str = "switchcraft:fast") -> set[str]:
        """Send requests with tools; return the models that answered."""
        client, models = self.client(key), set()
        for number in range(count):
            answer = client.chat.completions.with_raw_response.create(
                model=model,
                messages=[{"role": "user", "content": f"What is the weather in city {number}?"}],
                tools=TOOLS,
            )
            models.add(answer.headers["x-switchcraft-model"])
        return models

    def get(self, path: str) -> Any:  # noqa: ANN401 - JSON
        """Return what an endpoint for operators answers."""
        headers = {"authorization": f"Bearer {self.environment[ADMIN]}"}
        return httpx.get(f"{self.url}{path}", headers=headers).json()

    def accepts(self, key: str) -> bool:
        """Return whether the gateway knows a key."""
        headers = {"authorization": f"Bearer {key}"}
        return httpx.get(f"{self.url}/v1/models", headers=headers).is_success


def test_operator(browser: Browser, screens: Screens, prometheus: Path, tmp_path: Path) -> None:
    """Each step shows an operator what the pages promise, without a detour."""
    operator = Operator(tmp_path, screens, free_port())
    with ExitStack() as providers:
        mini = providers.enter_context(ExitStack())
        addresses = {
            "anthropic": providers.enter_context(run_in_thread()),
            "openai": mini.enter_context(run_in_thread()),
        }
        text = CONFIG.format(folder=tmp_path, **addresses)
        check_configuration(operator, text)
        first = make_artifact(tmp_path / "artifacts", "december")
        publish(operator, documented(OPERATIONS, "switchcraft-train publish"), first)
        port = int(operator.url.rpartition(":")[2])
        with gateway(
            operator.config, tmp_path, "--log-format", "text", port=port,
            environment=operator.environment, cwd=tmp_path,
        ) as served:  # fmt: skip
            operator.logged("the gateway starts", rf"serving at {operator.url}/v1")
            with running(
                prometheus, tmp_path, operator.url.removeprefix("http://"),
                operator.environment[METRICS],
            ) as monitoring:  # fmt: skip
                watch(operator, monitoring, browser)
                mini.close()
                lose_upstream(operator, monitoring)
                mini.enter_context(run_in_thread(port=urlsplit(addresses["openai"]).port or 0))
                reload_configuration(operator, text)
                give_budget(operator, browser)
                upgrade(operator, first)
            shut_down(operator, served.process)


def check_configuration(operator: Operator, text: str) -> None:
    """Create the keys, and correct what `switchcraft check` finds."""
    for name in (ADMIN, METRICS):
        shown = operator.run("switchcraft key")
        operator.environment[name] = next(word for word in shown.split() if word.startswith("sk-"))
    mistaken = text.replace("chat_model: gpt-4.1-mini", "chat_model: gpt-4.1-mimi")
    operator.write(mistaken.replace("max_body_bytes", "max_body_byte"))
    found = operator.run("switchcraft check gateway.yaml", status=1)
    line = mistaken.partition("  max_body_bytes:")[0].count("\n") + 1
    assert f"gateway.yaml:{line}: server.max_body_byte: is unknown; did you mean" in found
    operator.write(mistaken)
    found = operator.run("switchcraft check gateway.yaml", status=1)
    assert "there is no model 'gpt-4.1-mimi' in model_list" in found
    operator.write(text)
    found = operator.run("switchcraft check gateway.yaml --ask")
    assert "2 of 8 arms" in found


def publish(operator: Operator, command: str, artifact: Path) -> str:
    """Run a documented command that publishes an artifact."""
    command = command.replace("ARTIFACT", shlex.quote(str(artifact)))
    return operator.run(command.replace("--to DIR", "--to published"))


def watch(operator: Operator, prometheus: Prometheus, browser: Browser) -> None:
    """Send requests, and look at the metrics, as Prometheus has scraped them, and at the page."""
    models = operator.ask(operator.environment[ADMIN], 12)
    assert models <= {"claude-sonnet", "gpt-4.1-mini"}
    query = "sum by (model, status) (switchcraft_requests_total)"
    wait_for(lambda: sum(prometheus.ask(query).values()) >= 12, "the requests are scraped")
    operator.run(f"curl -s {prometheus.url}/api/v1/query -d {shlex.quote('query=' + query)}")
    with page_of(operator, browser) as tab:
        expect(tab.locator("#overview .tiles")).to_contain_text("12")
        operator.screens.page(tab, "the page after twelve requests", is_full=True)


def reload_configuration(operator: Operator, text: str) -> None:
    """Reload a file with a mistake, which changes nothing, and then a good one."""
    operator.write(text.replace("chat_model:", "chatmodel:"))
    reload = f'curl -s -X POST -H "authorization: Bearer ${ADMIN}" $GATEWAY/admin/reload'
    refused = operator.run(reload)
    assert "did you mean 'chat_model'?" in refused
    assert operator.ask(operator.environment[ADMIN], 1)
    operator.write(text.replace("router:", "router:\n  default_policy: economy"))
    assert "error" not in operator.run(reload)
    operator.logged("the reload", "reload")

    def is_used_again() -> bool:
        try:
            return operator.ask(operator.environment[ADMIN], 1, model="gpt-4.1-mini") != set()
        except openai.APIStatusError:
            return False

    wait_for(is_used_again, "the provider that was away is used again")


def give_budget(operator: Operator, browser: Browser) -> None:
    """Create a team and a key with a small budget, and spend it."""
    operator.run(with_config("switchcraft teams create search --budget 100/month"))
    created = operator.run(with_config("switchcraft keys create search-agent --team search"))
    secret = next(word for word in created.split() if word.startswith("sk-"))
    operator.run(with_config("switchcraft keys edit search-agent --budget 0.0005/total"))
    wait_for(lambda: operator.accepts(secret), "the gateway knows the key")

    refusals: list[openai.RateLimitError] = []

    def is_spent() -> bool:
        try:
            operator.ask(secret, 20, "switchcraft:quality")
        except openai.RateLimitError as exc:
            refusals.append(exc)
        return bool(refusals)

    wait_for(is_spent, "the budget is spent")
    assert "The budget of the key 'search-agent'" in refusals[0].message
    assert refusals[0].code == "insufficient_quota"
    operator.logged("a refused request", "search-agent.*429|429.*search-agent")

    def is_counted() -> bool:
        used = operator.run(with_config("switchcraft usage --by team key"))
        return re.search(r"^search +search-agent ", used, re.MULTILINE) is not None

    wait_for(is_counted, "the usage is written")
    reported = operator.run(documented(OPERATIONS, "curl -H"))
    assert reported.startswith("day,team,requests")
    assert re.search(r"^\d{4}-\d\d-\d\d,search,", reported, re.MULTILINE)
    with page_of(operator, browser) as tab:
        tab.get_by_role("tab", name="Keys").click()
        expect(tab.get_by_role("tabpanel", name="Keys")).to_contain_text("search-agent")
        operator.screens.page(tab, "the key whose budget is spent", is_full=True)


def lose_upstream(operator: Operator, prometheus: Prometheus) -> None:
    """One provider is away: clients get answers from the other one, and the operator is told."""
    admin = operator.environment[ADMIN]

    def is_noticed() -> bool:
        assert operator.ask(admin, 2, "switchcraft:economy") == {"claude-sonnet"}
        return "circuit open" in operator.log.read_text()

    wait_for(is_noticed, "the circuit is open")
    operator.logged("a provider is away", "circuit open")
    opened = "max by (deployment) (max_over_time(switchcraft_breaker_open[1h])) > 0"
    wait_for(lambda: prometheus.ask(opened), "the metrics show it")
    operator.run(f"curl -s {prometheus.url}/api/v1/query -d {shlex.quote('query=' + opened)}")


def upgrade(operator: Operator, old: Path) -> None:
    """Publish another artifact, as a canary and then to everyone, and go back to the old one."""
    new = make_artifact(operator.folder / "artifacts", "january")
    shown = publish(operator, documented(OPERATIONS, "switchcraft-train publish"), new)
    assert re.search(r"^stable +january-", shown, re.MULTILINE)
    wait_for(lambda: operator.get("/readyz")["artifact"] == "january", "the new artifact decides")
    operator.logged("the new artifact", "january")
    publish(operator, documented(OPERATIONS, "switchcraft-train publish"), old)
    wait_for(
        lambda: operator.get("/readyz")["artifact"] == "december", "the old artifact decides again"
    )


def shut_down(operator: Operator, process: subprocess.Popen[bytes]) -> None:
    """End the gateway while it answers: the answer is complete, and the log says what happens."""
    answers: list[str] = []
    started = threading.Event()

    def ask() -> None:
        stream = operator.client(operator.environment[ADMIN]).chat.completions.create(
            model="gpt-4.1-mini",
            messages=[{"role": "user", "content": "Tell me a story."}],
            extra_headers={"x-sandbox": "chunk_delay_s=0.2"},
            stream=True,
        )
        for chunk in stream:
            started.set()
            answers.extend(choice.finish_reason or "" for choice in chunk.choices)

    thread = threading.Thread(target=ask)
    thread.start()
    assert started.wait(20)
    process.terminate()
    thread.join(30)
    assert answers[-1] == "stop"
    assert process.wait(WAIT_S) == 0
    lines = operator.log.read_text().splitlines()
    operator.screens.terminal("tail gateway.log  # the shutdown", "\n".join(lines[-12:]))


def with_config(command: str) -> str:
    """Return a command of docs/accounts.md with the gateway's configuration."""
    return f"{command} --config gateway.yaml"


@contextmanager
def page_of(operator: Operator, browser: Browser) -> Iterator[Page]:
    """Open the page, and sign in with the admin key."""
    with browser.new_context(viewport={"width": 1440, "height": 900}) as context:
        tab = context.new_page()
        tab.goto(f"{operator.url}/ui")
        tab.get_by_label("Key of this gateway").fill(operator.environment[ADMIN])
        tab.keyboard.press("Enter")
        expect(tab.locator("#overview .tiles")).to_be_visible()
        yield tab
