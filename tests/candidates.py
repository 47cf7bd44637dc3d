"""Requests, candidate answers and hand-made verifier graphs that several tests share."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from router_service.apis.answers import ParsedAnswer, WrittenCall
from router_service.apis.conversation import Json, parse_conversation
from router_service.verifier.answer_features import (
    CANDIDATE_FEATURES,
    CandidateAnswer,
    Question,
    decode_calls,
    read_answer,
)
from router_service.verifier.graphs import VerifierSpec

FORECAST: Json = {
    "type": "object",
    "properties": {
        "city": {"type": "string"},
        "days": {"type": "integer", "default": 3},
        "unit": {"type": "string", "enum": ["celsius", "fahrenheit"]},
        "tags": {"type": "array", "items": {"type": "string"}},
    },
    "required": ["city"],
}

MOST = 0.95
"""The best probability that the hand-made gain graph expects from asking further."""


def tool(parameters: Json, name: str = "forecast") -> Json:
    """Return a function tool."""
    description = "Weather forecast for a city."
    function = {"name": name, "description": description, "parameters": parameters}
    return {"type": "function", "function": function}


def request(text: str = "Forecast for Oslo?", parameters: Json = FORECAST) -> Json:
    """Return a request with one tool."""
    return {"messages": [{"role": "user", "content": text}], "tools": [tool(parameters)]}


def ask(text: str = "Forecast for Oslo?", parameters: Json = FORECAST) -> Question:
    """Return such a request as the verifier reads it."""
    body = request(text, parameters)
    return Question(parse_conversation(body), body["tools"])


def answer(*arguments: Mapping[str, Json] | str) -> ParsedAnswer:
    """Return an answer with a call for each set of arguments, given as values or as text."""
    texts = [each if isinstance(each, str) else json.dumps(each) for each in arguments]
    return ParsedAnswer(
        tuple(WrittenCall(str(i), "forecast", text) for i, text in enumerate(texts))
    )


def read(question: Question, parsed: ParsedAnswer | None) -> CandidateAnswer:
    """Return an answer with its features."""
    return read_answer(question, decode_calls(parsed))


def feature(candidate: CandidateAnswer, name: str) -> float:
    """Return a feature of an answer by name."""
    return candidate.features[CANDIDATE_FEATURES.index(name)]


def write_verifier(directory: Path, request_features: int, arms: int) -> VerifierSpec:
    """Write two small graphs whose output can be computed by hand, and return their description.

    The log-odds of a candidate are the router's, plus 2 for each candidate that makes the same
    calls, minus 1 for each that does not. Without candidates, asking an arm gains its probability.
    With candidates, it gains what the best one lacks to `MOST`.
    """
    weights = np.zeros((request_features + 3, 1), np.float32)
    weights[-3:, 0] = 1, 2, -1
    correctness = [
        helper.make_node("MatMul", ["features", "weights"], ["score"]),
        helper.make_node("Sigmoid", ["score"], ["output"]),
    ]
    _save(directory / "verifier.onnx", correctness, {"weights": weights})
    gain = [
        helper.make_node("Split", ["features"], ["in_hand", "p", "best"], axis=1, num_outputs=3),
        helper.make_node("Sub", ["most", "best"], ["lacking"]),
        helper.make_node("Relu", ["lacking"], ["more"]),
        helper.make_node("Greater", ["in_hand", "half"], ["is_later"]),
        helper.make_node("Where", ["is_later", "more", "p"], ["output"]),
    ]
    constants = {"most": np.array([[MOST]]), "half": np.array([[0.5]])}
    _save(directory / "verifier-gain.onnx", gain, constants)
    return VerifierSpec(
        graph="verifier.onnx",
        gain_graph="verifier-gain.onnx",
        candidate_features=("own_logit", "agreeing", "differing"),
        gain_features=("candidates", "probability", "best_p"),
        reliabilities=(0.5,) * arms,
        price_usd=0.002,
    )


def _save(
    path: Path, nodes: list[onnx.NodeProto], constants: Mapping[str, NDArray[np.floating]]
) -> None:
    given = [
        numpy_helper.from_array(value.astype(np.float32), name) for name, value in constants.items()
    ]
    graph = helper.make_graph(
        nodes,
        "by hand",
        [helper.make_tensor_value_info("features", TensorProto.FLOAT, ["batch", "columns"])],
        [helper.make_tensor_value_info("output", TensorProto.FLOAT, ["batch", 1])],
        given,
    )
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)])
    proto.ir_version = 10
    onnx.save(proto, str(path))
