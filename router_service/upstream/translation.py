"""Translation of one request to the APIs of its deployments, and of their answers to the client's.

A deployment that speaks the client's API gets the client's bytes, except for reasoning that another
provider has signed.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field

import orjson

from router_service.apis.answer_translation import AnswerTranslator
from router_service.apis.api import Api, Target, UpstreamApi
from router_service.apis.encoding import encode
from router_service.apis.foreign import ATTACHED, SEAL, unseal, without_attached
from router_service.apis.parts import Request
from router_service.apis.request_translation import obstacles, read_request
from router_service.core.errors import Failure, InvalidRequestError, OverloadedError, UpstreamError
from router_service.core.strict_json import loads_exactly
from router_service.settings import Deployment, Model
from router_service.upstream.bodies import BodyTemplate
from router_service.upstream.client import ReserveMemory, unlimited

MAX_PROOFS = 50_000
"""Most proofs of reasoning that are remembered, about 200 bytes each; the oldest are dropped."""

AT_ONCE_BYTES = 256 * 1024
"""Largest body that is translated on the event loop, which takes about 5 ms; larger ones are
translated in a thread."""

TRANSLATION_COPIES = 3
"""Copies of a body in memory while it is translated: decoded, read and written."""

_NAMES = (b"signature", b"thinking", b"encrypted", b"reasoning", *map(str.encode, ATTACHED))
"""Words in errors about a proof, or about what another provider has attached to a call. An error
that contains one may have another cause."""

MAX_NAMED_FIELDS = 8
"""Most fields of a request that an error names as reasons why a model cannot get the request."""

Account = tuple[str, str]
"""Where a proof is valid: the address, and for the Responses API the account's key."""


class ProofMemory:
    """Memory of the accounts that made the proofs of reasoning which this process has relayed.

    Only hashes are kept. A proof that is not remembered, after a restart or from another replica,
    counts as valid everywhere until an upstream refuses it.
    """

    def __init__(self, max_proofs: int = MAX_PROOFS) -> None:
        self._max_proofs = max_proofs
        self._accounts: OrderedDict[int, Account] = OrderedDict()
        self._refusals: OrderedDict[tuple[int, Account], None] = OrderedDict()

    def remember(self, proof: str, account: Account) -> None:
        """Remember the account that made a proof."""
        self._accounts[hash(proof)] = account
        if len(self._accounts) > self._max_proofs:
            self._accounts.popitem(last=False)

    def refuse(self, proof: str, account: Account) -> None:
        """Remember that an account refuses a proof."""
        self._refusals[hash(proof), account] = None
        if len(self._refusals) > self._max_proofs:
            self._refusals.popitem(last=False)

    def is_foreign(self, proof: str, account: Account) -> bool:
        """Return whether a proof is known to be invalid at an account."""
        number = hash(proof)
        known = self._accounts.get(number, account) != account
        return known or (number, account) in self._refusals


def account_of(deployment: Deployment, api: UpstreamApi) -> Account:
    """Return where proofs of a deployment are valid.

    Anthropic's signatures are valid for all of its keys, and at a platform in all of its regions.
    They are not assumed to be valid at another platform. OpenAI's encrypted reasoning is only valid
    for the organization of the key.
    """
    if api.proofs_belong_to_key:
        return deployment.account
    return deployment.origin if deployment.platform is None else deployment.provider, ""


RunInThread = Callable[[Callable[[], bytes]], Awaitable[bytes]]
"""Runs a function in a thread and returns its result."""


async def run_at_once(write: Callable[[], bytes]) -> bytes:
    """Run a function here instead of in a thread."""
    return write()


@dataclass(slots=True)
class Translation:
    """One request in every API that its deployments speak, read and written when it is needed."""

    client: Api
    """The client's API."""
    body: BodyTemplate
    compacts: bool = False
    """Whether the request is for the endpoint that compacts a conversation."""
    reserve_memory: ReserveMemory = unlimited
    run_in_thread: RunInThread = run_at_once
    """Runs what takes long, in a thread of the client's share; raises OverloadedError."""
    _request: Request | None = None
    _obstacles: dict[UpstreamApi, tuple[str, ...]] = field(default_factory=dict)
    """Fields that each API cannot express; empty until a request has to be translated."""
    _bodies: dict[tuple[Target, Account, bool], bytes] = field(default_factory=dict)
    _proofs: list[str] | None = None

    def target_of(self, deployment: Deployment) -> UpstreamApi | None:
        """Return the API in which a deployment gets the request, or None if it cannot get it.

        That is the client's API, or else the first of the deployment's that can express it.
        Raises InvalidRequestError if the request has to be translated, but is malformed.
        """
        if self.client in deployment.apis:
            return self.client
        return next((target for target in deployment.apis if not self._lost(target)), None)

    def able(self, model: Model) -> Sequence[Deployment]:
        """Return the deployments of a model that can get the request.

        Raises InvalidRequestError as `target_of` does.
        """
        for deployment in model.deployments:
            if self.client not in deployment.apis:
                break
        else:
            return model.deployments
        return [each for each in model.deployments if self.target_of(each) is not None]

    def obstacles(self, deployment: Deployment) -> tuple[str, ...]:
        """Return descriptions of what keeps the request from a deployment that is not able."""
        lost = self._lost(deployment.apis[0]) if deployment.apis else ()
        shown = [f"the field {path!r} of {self.client.title}" for path in lost[:MAX_NAMED_FIELDS]]
        more = (f"{len(lost) - len(shown)} more fields",) if len(lost) > len(shown) else ()
        return (*shown, *more) or (self.client.title,)

    def _lost(self, target: UpstreamApi) -> tuple[str, ...]:
        """Return the fields that an API cannot express."""
        found = self._obstacles.get(target)
        if found is None:
            found = self._obstacles[target] = obstacles(self.request, self.client, target)
        return found

    async def body_for(
        self,
        model: Model,
        deployment: Deployment,
        api: UpstreamApi,
        memory: ProofMemory,
        *,
        has_thinking: bool,
    ) -> bytes:
        """Return the request's body for a deployment, without reasoning that is invalid there.

        `api` is what `target_of` returns. Without `has_thinking`, there is no reasoning in it at
        all. Raises UpstreamError if there is too little memory.
        """
        limit_tokens = model.capabilities.max_output_tokens
        name, can_reason = deployment.upstream_model, deployment.supports_reasoning
        target = Target(api, name, deployment.provider, limit_tokens, can_reason)
        if api is self.client:
            body = without_attached(self.body.with_model(name))
            body = api.with_fitting_call_ids(body, target)
            proofs = self.proofs
            if has_thinking and not proofs:
                return body
        account = account_of(deployment, api)

        def is_foreign(proof: str) -> bool:
            return not has_thinking or memory.is_foreign(proof, account)

        if api is self.client:
            if not any(proof.startswith(SEAL) or is_foreign(proof) for proof in proofs or ("",)):
                return body
            kept = api.without_foreign_thinking(loads_exactly(body), is_foreign)
            return body if kept is None else orjson.dumps(kept)

        key = target, account, has_thinking
        if key not in self._bodies:
            try:
                self.reserve_memory(TRANSLATION_COPIES * self.body.size_bytes)
            except OverloadedError as exc:
                problem = "was not asked, because there is no memory to translate the request"
                raise UpstreamError(model.name, problem, Failure.BUSY) from exc

            def write() -> bytes:
                return encode(api.write_request(self.request, target, is_foreign))

            if self.body.size_bytes <= AT_ONCE_BYTES:
                self._bodies[key] = write()
                return self._bodies[key]
            try:
                self._bodies[key] = await self.run_in_thread(write)
            except OverloadedError as exc:
                problem = "was not asked, because no thread was free to translate the request"
                raise UpstreamError(model.name, problem, Failure.BUSY) from exc
        return self._bodies[key]

    @property
    def request(self) -> Request:
        """The request, read from its body at the first use."""
        if self._request is None:
            request = read_request(self.body.exact_fields, self.client, compacts=self.compacts)
            if "thread" in request.lost:  # Anthropic's clients then send the whole conversation
                raise InvalidRequestError(
                    "Not every model that may answer keeps conversations ('thread'). Send the whole"
                    " conversation without 'thread'.",
                    param="thread",
                    code="thread_unsupported_request",
                )
            self._request = request
        return self._request

    @property
    def proofs(self) -> Sequence[str]:
        """What may be proofs of reasoning in the client's body.

        Reasoning of Chat Completions has no proof. An empty text stands for all of it.
        """
        if self._proofs is None:
            marks, pattern = self.client.proof_marks, self.client.proof_pattern
            found: Sequence[bytes] = ()
            if pattern is not None and (not marks or self.body.contains_any(marks)):
                found = self.body.find_all(pattern)
            distinct = dict.fromkeys(found)
            self._proofs = [proof.decode(errors="replace") for proof in distinct] if found else []
        return self._proofs

    def refuse_proofs(self, deployment: Deployment, api: UpstreamApi, memory: ProofMemory) -> None:
        """Remember that a deployment refuses the proofs in the client's body.

        Without any, what it refuses has no proof: reasoning, or what is attached to calls.
        """
        account = account_of(deployment, api)
        for proof in self.proofs or ("",):
            memory.refuse(unseal("", proof, self.client.name).proof, account)

    def answer_translator(self, deployment: Deployment, source: UpstreamApi) -> AnswerTranslator:
        """Return a translator of a deployment's answer, which is in another API."""
        return AnswerTranslator(
            source,
            self.client,
            self.request,
            model=deployment.upstream_model,
            created_s=int(time.time()),
            needs_reason=deployment.sends_finish_reason,
            provider=deployment.provider,
        )


def may_refuse_thinking(error: bytes) -> bool:
    """Return whether an error may be about reasoning in the request."""
    text = error.lower()
    return any(name in text for name in _NAMES)
