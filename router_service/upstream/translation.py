"""Translation of one request to the APIs of its deployments, and of their answers to the client's.

A deployment that speaks the client's API gets the client's bytes, except for reasoning that another
provider has signed.
"""

from __future__ import annotations

import re
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, field

import orjson

from router_service.apis.conversation import Json
from router_service.apis.encoding import encode
from router_service.apis.foreign import SEAL, unseal
from router_service.apis.parts import Dialect, Request
from router_service.apis.registry import (
    read_request,
    with_fitting_call_ids,
    without_foreign_thinking,
    write_request,
)
from router_service.apis.translators import AnswerTranslator
from router_service.apis.writing import Target
from router_service.core.errors import Failure, OverloadedError, UpstreamError
from router_service.core.strict_json import loads_exactly
from router_service.settings import Deployment, Model
from router_service.upstream.bodies import BodyTemplate
from router_service.upstream.client import ReserveMemory

MAX_PROOFS = 50_000
"""Most proofs of reasoning that are remembered, about 200 bytes each; the oldest are dropped."""

AT_ONCE_BYTES = 256 * 1024
"""Largest body that is translated on the event loop, which takes about 5 ms; larger ones are
translated in a thread."""

TRANSLATION_COPIES = 3
"""Copies of a body in memory while it is translated: decoded, read and written."""

_PROOF = re.compile(rb'"(?:signature|data|encrypted_content)"\s*:\s*"([^"\\]{8,})"')
"""A proof of reasoning in a request's body. Other values may match too, such as images."""

_MARKS = (b'"signature"', b'"redacted_thinking"', b'"encrypted_content"')
"""Every Messages or Responses body with a proof contains one of these."""

_CHAT_MARK = re.compile(rb'"reasoning(?:_content|_details)?"')
"""Every chat body with reasoning contains a match."""

_CHAT_RESULT = re.compile(rb'"tool_call_id"\s*:\s*"([^"]*)"')
"""The id of a call that has a result, in a chat body."""

_NAMES = (b"signature", b"thinking", b"encrypted", b"reasoning")
"""Words in errors about a proof. An error that contains one may have another cause."""

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


def account_of(deployment: Deployment, dialect: Dialect) -> Account:
    """Return where proofs of a deployment are valid.

    Anthropic's signatures are valid for all of its keys. OpenAI's encrypted reasoning is only valid
    for the organization of the key.
    """
    key = deployment.api_key if dialect is Dialect.RESPONSES else None
    return deployment.origin, "" if key is None else key.get_secret_value()


def find_proofs(value: Json) -> Iterator[str]:
    """Yield the proofs of reasoning in a whole answer, or in one event of a stream."""
    if not isinstance(value, dict):
        return
    kind = value.get("type")
    if kind == "content_block_delta":
        parts: Json = (value.get("delta"),)
    elif kind == "content_block_start":
        parts = (value.get("content_block"),)
    elif kind == "response.output_item.done":
        parts = (value.get("item"),)
    else:
        parts = value.get("content", value.get("output"))
    for part in parts if isinstance(parts, list | tuple) else ():
        if not isinstance(part, dict):
            continue
        name = {"redacted_thinking": "data", "reasoning": "encrypted_content"}.get(
            str(part.get("type")), "signature"
        )
        proof = part.get(name)
        if isinstance(proof, str) and proof:
            yield proof


@dataclass(slots=True)
class Translation:
    """One request in every API that its deployments speak, each written when it is needed."""

    dialect: Dialect
    """The client's API."""
    body: BodyTemplate
    target_of: Callable[[Deployment], Dialect | None]
    """The API in which a deployment gets the request; None if it cannot get it."""
    reserve_memory: ReserveMemory
    run_in_thread: Callable[[Callable[[], bytes]], Awaitable[bytes]]
    """Runs what takes long, in a thread of the client's share; raises OverloadedError."""
    _request: Request | None = None
    _bodies: dict[tuple[Target, Account, bool], bytes] = field(default_factory=dict)
    _proofs: list[str] | None = None

    async def body_for(
        self, model: Model, deployment: Deployment, memory: ProofMemory, *, has_thinking: bool
    ) -> bytes:
        """Return the request's body for a deployment, without reasoning that is invalid there.

        Without `has_thinking`, there is no reasoning in it at all. Raises UpstreamError if there is
        too little memory.
        """
        dialect = self.target_of(deployment) or self.dialect
        account = account_of(deployment, dialect)

        def is_foreign(proof: str) -> bool:
            return not has_thinking or memory.is_foreign(proof, account)

        limit_tokens = model.capabilities.max_output_tokens
        name, can_reason = deployment.upstream_model, deployment.supports_reasoning
        target = Target(dialect, name, deployment.provider, limit_tokens, can_reason)
        if dialect is self.dialect:
            body = self.body.with_model(deployment.upstream_model)
            if dialect is Dialect.CHAT and target.limits_call_ids:
                ids = (found.decode(errors="replace") for found in _CHAT_RESULT.findall(body))
                if any(target.call_id(call_id) != call_id for call_id in ids):
                    body = orjson.dumps(with_fitting_call_ids(loads_exactly(body), target))
            proofs = self.proofs if has_thinking else ()
            if has_thinking and not any(p.startswith(SEAL) or is_foreign(p) for p in proofs):
                return body
            kept = without_foreign_thinking(loads_exactly(body), dialect, is_foreign)
            return body if kept is None else orjson.dumps(kept)

        key = target, account, has_thinking
        if key not in self._bodies:
            try:
                self.reserve_memory(TRANSLATION_COPIES * self.body.size_bytes)
            except OverloadedError as exc:
                problem = "was not asked, because there is no memory to translate the request"
                raise UpstreamError(model.name, problem, Failure.BUSY) from exc

            def write() -> bytes:
                return encode(write_request(self.request, target, is_foreign))

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
            body = loads_exactly(self.body.with_model("-"))
            self._request = read_request(body, self.dialect)
        return self._request

    @property
    def proofs(self) -> Sequence[str]:
        """What may be proofs of reasoning in the client's body.

        Reasoning of Chat Completions has no proof. An empty text stands for all of it.
        """
        if self._proofs is None and self.dialect is Dialect.CHAT:
            has_reasoning = any(self.body.find_all(_CHAT_MARK))
            self._proofs = [""] if has_reasoning else []
        elif self._proofs is None:
            found = self.body.find_all(_PROOF) if self.body.contains_any(_MARKS) else ()
            self._proofs = [proof.decode(errors="replace") for proof in found]
        return self._proofs

    def refuse_proofs(self, deployment: Deployment, memory: ProofMemory) -> None:
        """Remember that a deployment refuses the proofs in the client's body."""
        account = account_of(deployment, self.target_of(deployment) or self.dialect)
        for proof in self.proofs:
            memory.refuse(unseal("", proof, self.dialect).proof, account)

    def answer_translator(self, deployment: Deployment) -> AnswerTranslator | None:
        """Return a translator of a deployment's answer, or None if it needs none."""
        source = self.target_of(deployment)
        if source is None or source is self.dialect:
            return None
        name, now_s = deployment.upstream_model, int(time.time())
        return AnswerTranslator(source, self.dialect, self.request, model=name, created_s=now_s)


def may_refuse_thinking(error: bytes) -> bool:
    """Return whether an error may be about reasoning in the request."""
    text = error.lower()
    return any(name in text for name in _NAMES)
