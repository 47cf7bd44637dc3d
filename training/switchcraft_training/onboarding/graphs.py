"""Changes of an exported graph's arms that leave the outputs of all other arms as they are."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
from onnx import helper, numpy_helper

from router_service.core.errors import ArtifactError


def append_arm(path: Path, arm: Path) -> None:
    """Append the output of the graph in the file `arm` to the probabilities of a router's graph.

    The nodes of both graphs stay as they are; only their outputs are joined. Raises ArtifactError
    if the graphs use different versions of the operators.
    """
    graph, added = onnx.load(str(path)), onnx.load(str(arm))
    versions = {each.domain: each.version for each in graph.opset_import}
    for each in added.opset_import:
        if versions.setdefault(each.domain, each.version) != each.version:
            problem = (
                f"uses version {versions[each.domain]} of the operators {each.domain or 'ai.onnx'},"
                f" and this program writes version {each.version}; train the artifact again"
            )
            raise ArtifactError(path, problem)
    graph.ClearField("opset_import")
    graph.opset_import.extend(helper.make_opsetid(*each) for each in versions.items())
    inputs = {each.name for each in added.graph.input}
    known = {each.name for each in graph.graph.input}
    graph.graph.input.extend(each for each in added.graph.input if each.name not in known)
    pool = _rename_output(graph)
    prefix = f"{pool}/"  # unique, because the name of each joined output is new

    def rename(name: str) -> str:
        return name if name in inputs or not name else prefix + name

    for table in added.graph.initializer:
        table.name = rename(table.name)
        graph.graph.initializer.append(table)
    for node in added.graph.node:
        node.name = prefix + node.name
        node.input[:] = [rename(name) for name in node.input]
        node.output[:] = [rename(name) for name in node.output]
        graph.graph.node.append(node)
    output = graph.graph.output[0]
    joined = [pool, rename(added.graph.output[0].name)]
    graph.graph.node.append(
        helper.make_node("Concat", joined, [output.name], f"{prefix}join", axis=1)
    )
    columns = output.type.tensor_type.shape.dim[1].dim_value
    _save(graph, path, columns + 1)


def select_arms(path: Path, columns: Sequence[int]) -> None:
    """Keep only these columns of the probabilities of a router's graph, in this order."""
    graph = onnx.load(str(path))
    every = _rename_output(graph)
    name = graph.graph.output[0].name
    kept = f"{every}/kept"
    graph.graph.initializer.append(numpy_helper.from_array(np.array(columns, dtype=np.int64), kept))
    graph.graph.node.append(
        helper.make_node("Gather", [every, kept], [name], f"{kept}/arms", axis=1)
    )
    _save(graph, path, len(columns))


def _rename_output(graph: onnx.ModelProto) -> str:
    """Give the tensor that is the output a new name, and return that name."""
    name = graph.graph.output[0].name
    taken = {each for node in graph.graph.node for each in node.output}
    new = next(f"{name}/{n}" for n in range(len(taken) + 1) if f"{name}/{n}" not in taken)
    for node in graph.graph.node:
        node.input[:] = [new if each == name else each for each in node.input]
        node.output[:] = [new if each == name else each for each in node.output]
    return new


def _save(graph: onnx.ModelProto, path: Path, columns: int) -> None:
    graph.graph.output[0].type.tensor_type.shape.dim[1].dim_value = columns
    onnx.save(graph, str(path))
