"""Disturbances of a soak: reloads, publications, upstream faults and Redis restarts."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import yaml

from benchmarks.mixed.traffic import EMBEDDER, FAULTY, FOREIGN, MAX_BODY_BYTES, PINNED, RESCUED
from router_service.core.errors import ArtifactError
from router_service.core.keys import hashed
from router_service.core.releases import Canary, PublicationUpdate, Release
from router_service.store.pointers import Pointer
from switchcraft_training.publishing.releases import promote, put_canary, put_stable
from tests.drills.processes import ARMS, GatewayProcess, RedisServer
from tests.serving import Sandbox

COOL_DOWN_S = 61.0
"""Longest effect of a fault after its end: a circuit breaker's longest open time."""
STORE_LAG_S = 6.0
"""Longest loss of writes after Redis is back: the longest pause after a failed write."""
CANARY_SHARE = 0.3
MAX_RESPONSES = 2000
"""Low enough to be reached during warm-up; the default of 50,000 grows for hours, to 35 MB."""
FIRST_BYTE_S = IDLE_S = 3.0
"""The gateway's timeouts for the sandbox, which end requests to silent models."""


@dataclass(frozen=True, slots=True)
class Disturbance:
    """One disturbance of the gateway and its effect."""

    name: str
    at_s: float
    """From the start of the soak."""
    took_s: float
    """Time until its effect was seen."""
    problem: str = ""
    """Reason if its effect was not seen."""


@dataclass(frozen=True, slots=True)
class Pace:
    """Interval and duration of the disturbances."""

    pause_s: float
    """Time between two disturbances."""
    fault_s: float
    """Time that a model fails or Redis is down."""


@dataclass(frozen=True)
class Configuration:
    """Writer of variations of the gateway's configuration file."""

    path: Path
    sandbox_url: str
    redis_url: str
    keys: Sequence[str]
    admin_key: str

    @property
    def releases(self) -> Path:
        """The directory of published artifacts."""
        return self.path.parent / "releases"

    @property
    def pointer(self) -> Pointer:
        """The pointer to the published artifacts."""
        return Pointer(self.releases)

    def write(self, number: int) -> None:
        """Write variation `number`, which changes the policy and one model."""
        names = [*ARMS, PINNED, FOREIGN, EMBEDDER, *FAULTY, f"extra-{number % 5}"]
        router = {
            "publication": str(self.releases),
            "default_policy": f"theta=0.{number % 8 + 1}",
            "exploration_share": 0.05,
        }
        keys = {f"team-{i}": hashed(key) for i, key in enumerate(self.keys)}
        server = {
            "redis_url": self.redis_url,
            "max_body_bytes": MAX_BODY_BYTES,
            "max_responses": MAX_RESPONSES,
        }
        decision_log = {
            "path": str(self.path.parent / "decisions"),
            "content": True,
            "evidence": True,
            "max_file_mb": 5,
            "retention_days": 0.02,
        }
        tree = {
            "model_list": [self._entry(name) for name in names],
            "router_settings": {"fallbacks": [{RESCUED: [PINNED]}]},
            "router": router,
            "server": server,
            "upstreams": {"timeouts": {"first_byte_s": FIRST_BYTE_S, "idle_s": IDLE_S}},
            "keys": {"api": keys, "admin": hashed(self.admin_key)},
            "decision_log": decision_log,
        }
        partial_path = self.path.with_suffix(".partial")
        partial_path.write_text(yaml.safe_dump(tree))
        partial_path.replace(self.path)

    def spoil(self) -> None:
        """Write an invalid file."""
        self.path.write_text("model_list: [")

    def _entry(self, name: str) -> Mapping[str, object]:
        price = {"input_cost_per_token": 1e-6, "output_cost_per_token": 2e-6}
        params = {"model": f"openai/{name}", "api_base": self.sandbox_url, "api_key": "k", **price}
        entry: dict[str, object] = {"model_name": name, "litellm_params": params}
        if name == FOREIGN:
            entry["model_info"] = {"supported_endpoints": ["/v1/messages"]}
        return entry


class Disturber:
    """Thread that disturbs a gateway in each way in turn."""

    def __init__(
        self,
        gateway: GatewayProcess,
        redis_server: RedisServer,
        sandbox: Sandbox,
        configuration: Configuration,
        releases: Sequence[Release],
        pace: Pace,
    ) -> None:
        """Prepare the disturbances with these releases and variations of a configuration."""
        self._gateway = gateway
        self._redis = redis_server
        self._sandbox = sandbox
        self._configuration = configuration
        self._releases = releases
        self._pace = pace
        self._pointer = configuration.pointer
        self._fault_until_s = 0.0
        self._store_until_s = 0.0
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run, name="disturber", daemon=True)
        self.done: list[Disturbance] = []

    def start(self) -> None:
        """Start to disturb."""
        self._began_s = time.monotonic()
        self._thread.start()

    def stop(self) -> None:
        """Stop after the current disturbance, with upstreams and Redis restored."""
        self._end.set()
        self._thread.join()

    def upstreams_troubled(self, since_s: float) -> bool:
        """Return whether a routed model's fault may have had an effect since `since_s`."""
        return since_s < self._fault_until_s

    def store_troubled(self, since_s: float) -> bool:
        """Return whether a record written since `since_s` may be lost."""
        return since_s < self._store_until_s

    def _run(self) -> None:
        turns = (
            self._hang_up,
            self._publish,
            lambda: self._fail_upstream("status=500"),
            self._refuse_config,
            self._publish_canary,
            lambda: self._fail_upstream("status=429,retry_after_s=1"),
            self._reload,
            self._promote,
            lambda: self._fail_upstream("malformed"),
            self._restart_redis,
            lambda: self._fail_upstream("hang"),
        )
        while True:
            for turn in turns:
                if self._end.wait(self._pace.pause_s):
                    return
                self._do(turn)

    def _do(self, turn: Callable[[], str]) -> None:
        started_s = time.monotonic()
        name, problem = getattr(turn, "__name__", "disturbance").strip("_"), ""
        try:
            name = turn()
        except (AssertionError, OSError, ArtifactError) as exc:
            problem = f"{type(exc).__name__}: {exc}"
        took_s = time.monotonic() - started_s
        self.done.append(Disturbance(name, started_s - self._began_s, took_s, problem))

    def _hang_up(self) -> str:
        taken = self._gateway.metric(_RELOADS.format("config", "taken"))
        self._configuration.write(len(self.done))
        self._gateway.send_sighup()
        self._gateway.wait_for_metric(_RELOADS.format("config", "taken"), taken + 1)
        return "SIGHUP"

    def _reload(self) -> str:
        self._configuration.write(len(self.done))
        answer = self._gateway.http.post("/admin/reload")
        _check(answer.status_code == 200, answer.text)
        return "reload"

    def _refuse_config(self) -> str:
        self._configuration.spoil()
        answer = self._gateway.http.post("/admin/reload")
        self._configuration.write(len(self.done))
        _check(answer.status_code == 409, answer.text)
        return "refused reload"

    def _fail_upstream(self, faults: str) -> str:
        """Make one routed model fail for a while; other models must answer instead."""
        arm = ARMS[len(self.done) % len(ARMS)]
        self._fault_until_s = time.monotonic() + self._pace.fault_s + COOL_DOWN_S
        self._sandbox.set_faults(arm, faults)
        self._end.wait(self._pace.fault_s)
        self._sandbox.set_faults(arm, "")
        return f"upstream: {faults.partition('=')[2] or faults}"

    def _publish(self) -> str:
        release = self._next_release()
        self._move(lambda published: put_stable(published, release))
        self._gateway.wait_for_artifact(release.name)
        return "publication"

    def _publish_canary(self) -> str:
        # A minimum that is never reached: injected faults must not roll it back at a random time.
        canary = Canary(release=self._next_release(), share=CANARY_SHARE, min_requests=10**9)
        self._move(lambda published: put_canary(published, canary))
        self._gateway.wait_for_canary(canary=True)
        return "canary"

    def _promote(self) -> str:
        self._move(promote)
        self._gateway.wait_for_canary(canary=False)
        return "promotion"

    def _restart_redis(self) -> str:
        """Kill Redis, with all its data, and start it again."""
        self._store_until_s = float("inf")
        self._redis.kill()
        self._end.wait(self._pace.fault_s)
        self._redis.start()
        self._gateway.wait_for_metric('switchcraft_dependency_up{dependency="shared_state"}', 1)
        self._store_until_s = time.monotonic() + STORE_LAG_S
        return "Redis restart"

    def _move(self, change: PublicationUpdate) -> None:
        """Move the pointer and wait until the gateway uses it."""
        published = self._pointer.move(change)
        series = "switchcraft_publication_serial"
        deadline_s = time.monotonic() + 30
        while self._gateway.metric(series) != published.serial:
            _check(time.monotonic() < deadline_s, f"publication {published.serial} not in use")
            time.sleep(0.2)

    def _next_release(self) -> Release:
        release = self._releases[len(self.done) % len(self._releases)]
        created = datetime.now(UTC).isoformat(timespec="microseconds")
        return release.model_copy(update={"created": created})


def _check(has_effect: bool, problem: str) -> None:
    if not has_effect:
        raise AssertionError(problem)


_RELOADS = 'switchcraft_reloads_total{{kind="{}",outcome="{}"}}'
