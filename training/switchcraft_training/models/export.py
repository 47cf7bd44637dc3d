"""Export of a trained router: its ONNX graphs (FP32, int8, fp16), canary requests, manifest."""

from __future__ import annotations

import json
import logging
import warnings
from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import contextmanager
from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import torch
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper
from onnxruntime.quantization import QuantType, quantize_dynamic
from tokenizers import Tokenizer
from torch import Tensor, nn

from router_service.apis.conversation import Json, parse_conversation
from router_service.artifact import (
    CANARIES,
    SCHEMA_VERSION,
    TOKENIZER,
    Encoder,
    Manifest,
    Provenance,
    file_hashes,
    save_manifest,
)
from router_service.measurement.goals import parse_goal
from router_service.measurement.held_out import Figures
from router_service.policies.costs import ArmProfile
from router_service.predictor.familiarity import FamiliaritySpec
from router_service.predictor.model import (
    BATCHING_KEY,
    DEMAND,
    IDENTITY,
    INDEPENDENT_ROWS,
    Calibration,
    Classifier,
)
from router_service.predictor.packing import Packer
from switchcraft_training.config import RunConfig
from switchcraft_training.models.branches import FOREST_OPERATOR
from switchcraft_training.models.model import RouterModel, weighted_mean

OPSET = 23
"""The first ONNX opset with attention as one operator.

512 tokens take a fifth less time than in opset 18.
"""

MAX_WINDOW = 2_048
"""Number of tokens for which it is checked that attention is not limited to a window."""

ML_OPSET = 5
SUM = 1
GO_LEFT_IF_NOT_ABOVE = 0
"""Constants of `ai.onnx.ml`: how trees are aggregated, and which rows go left."""

Indices = NDArray[np.integer[Any]]
Line = tuple[float, float]
"""A slope and a shift of logits."""
UNCHANGED: Line = (1.0, 0.0)


class RouterGraph(nn.Module):
    """The network that the service runs, from ids, mask and features to probabilities of arms.

    If the network predicts how many calls a request asks for, that is its second output. `line` is
    a slope and a shift of all logits, for an arm that is calibrated inside its graph.
    """

    def __init__(self, model: RouterModel, line: Line = UNCHANGED) -> None:
        super().__init__()
        self.model = model
        self.line = line

    @property
    def outputs(self) -> list[str]:
        """The names of the outputs."""
        return ["probabilities"] if self.model.counts.demand is None else ["probabilities", DEMAND]

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor, features: Tensor
    ) -> tuple[Tensor, ...]:
        """Return probabilities (batch, arms), and the demand for calls (batch, 3) if predicted."""
        branches, demand = self.model.branches_and_demand(input_ids, attention_mask, features)
        logits = weighted_mean(branches, self.model.shares)
        if self.line != UNCHANGED:
            logits = logits * self.line[0] + self.line[1]
        probabilities = torch.sigmoid(logits)
        return (probabilities,) if demand is None else (probabilities, demand)


def export_onnx(model: RouterModel, features: int, path: Path, line: Line = UNCHANGED) -> None:
    """Write the graph in FP32, with dynamic batch and token dimensions.

    The model moves to the CPU.
    """
    graph = RouterGraph(model, line).cpu().eval()
    ids = torch.ones(2, 8, dtype=torch.long)
    inputs = (ids, torch.ones_like(ids), torch.zeros(2, features))
    batch, tokens = torch.export.Dim("batch"), torch.export.Dim("tokens")
    shapes = ({0: batch, 1: tokens}, {0: batch, 1: tokens}, {0: batch})
    with _quiet():
        program = torch.onnx.export(
            graph,
            inputs,
            input_names=["input_ids", "attention_mask", "features"],
            output_names=graph.outputs,
            dynamic_shapes=shapes,
            opset_version=OPSET,
            verbose=False,
        )
    assert program is not None  # noqa: S101 - the dynamo exporter always returns a program
    written = program.model_proto
    for node in written.graph.node:
        node.ClearField("metadata_props")  # stack traces with the paths of this machine
    use_tree_kernel(written)
    written.metadata_props.add(key=BATCHING_KEY, value=INDEPENDENT_ROWS)
    onnx.save(written, str(path))


def export_int8(model: RouterModel, features: int, path: Path) -> Path:
    """Write the int8 graph, and the FP32 graph next to it; return the path of the int8 graph."""
    full = full_precision(path)
    export_onnx(model, features, full)
    quantize_int8(full, path)
    return path


def full_precision(path: Path) -> Path:
    """Return the path of the FP32 graph next to an int8 graph."""
    return path.with_name(f"{path.name.split('.')[0]}.fp32.onnx")


def attend_to_all_tokens(model: onnx.ModelProto) -> None:
    """Remove the input `attention_mask` from a graph whose rows run one at a time, in place.

    Such rows have no padding, so the mask is 1 for all tokens. BERT's attention then adds no mask
    to its scores, and divides its input into heads without copies. On the CPU, a run takes an
    eighth less time (0.67 instead of 0.76 ms for BFCL's requests), and probabilities change by less
    than 1e-6.
    """
    inferred = onnx.shape_inference.infer_shapes(model).graph.value_info
    shapes = {each.name: each.type.tensor_type.shape.dim for each in inferred}
    # Pooling and hashed words still count tokens by the mask.
    ones = numpy_helper.from_array(np.ones(1, dtype=np.int64))
    shape = helper.make_node("Shape", ["input_ids"], ["mask/shape"], "mask/shape")
    mask = helper.make_node("ConstantOfShape", ["mask/shape"], ["mask"], "mask", value=ones)
    nodes = [shape, mask, *model.graph.node]
    for node in nodes:
        node.input[:] = ["mask" if name == "attention_mask" else name for name in node.input]
    source = {output: node for node in nodes for output in node.output}
    for node in [node for node in nodes if node.op_type == "Attention"]:
        transposed = [source.get(name) for name in node.input[:3]]
        split = [source.get(each.input[0]) for each in transposed if each is not None]
        operators = [each.op_type for each in (*transposed, *split) if each is not None]
        is_berts = operators == ["Transpose"] * 3 + ["Reshape"] * 3 and len(node.input) == 4
        if not (is_berts and _attends_to_all(model, nodes, node.input[3])):
            continue
        # The exporter reshapes and transposes (row, token, hidden) to (row, head, token, part)
        # and back. The operator does that, if it knows the number of heads.
        (joined,) = [each for each in nodes if node.output[0] in each.input]
        (reshaped,) = [each for each in nodes if joined.output[0] in each.input]
        node.input[:] = [each.input[0] for each in split if each is not None]
        node.output[:] = reshaped.output
        reshaped.output[:] = [f"{node.name}/unused"]
        (scale,) = [each.f for each in node.attribute if each.name == "scale"]
        hidden = shapes[node.input[0]][-1].dim_value
        heads = round(hidden * scale**2)  # the scale is 1 / sqrt(size of a head)
        names = ("q_num_heads", "kv_num_heads")
        node.attribute.extend(helper.make_attribute(name, heads) for name in names)
    _keep_only(model, nodes, {each.name for each in model.graph.output})


def _attends_to_all(
    model: onnx.ModelProto, nodes: Sequence[onnx.NodeProto], attention_mask: str
) -> bool:
    """Return whether every token attends to all tokens; not so with a sliding window."""
    alone = deepcopy(model)
    output = helper.make_tensor_value_info(attention_mask, TensorProto.BOOL, None)
    alone.graph.ClearField("output")
    alone.graph.output.append(output)
    _keep_only(alone, nodes, {attention_mask})
    session = ort.InferenceSession(alone.SerializeToString(), providers=["CPUExecutionProvider"])
    (found,) = session.run(None, {"input_ids": np.zeros((1, MAX_WINDOW), dtype=np.int64)})
    return bool(np.asarray(found).all())


def _keep_only(
    model: onnx.ModelProto, nodes: Sequence[onnx.NodeProto], outputs: AbstractSet[str]
) -> None:
    """Give a graph the nodes, inputs and tables that these outputs need."""
    kept: list[onnx.NodeProto] = []
    needed = set(outputs)
    for node in reversed(nodes):
        if not needed.isdisjoint(node.output):
            kept.append(node)
            needed.update(node.input)
    model.graph.ClearField("node")
    model.graph.node.extend(reversed(kept))
    for field in (model.graph.input, model.graph.initializer):
        for each in [each for each in field if each.name not in needed]:
            field.remove(each)  # pyrefly: ignore[bad-argument-type]  # of one kind


def quantize_int8(source: Path, target: Path) -> None:
    """Quantize the encoder's weights to int8, which takes a quarter of the space of FP32.

    Activations are quantized at run time. Weights use 7 bits, because 8 bits can overflow the
    16-bit sums of CPUs without VNNI. On such a CPU, an encoder with one layer of width 128 takes 7
    to 13% less time than in FP32. The other branches are not quantized, because trees have
    thresholds instead of weights, and the weights of networks and hashed words are small.
    """
    model = onnx.load(str(source))
    attend_to_all_tokens(model)
    # The exporter writes wrong shapes for transposed weights. If all shapes are removed, the
    # quantizer infers them again.
    model.graph.ClearField("value_info")
    excluded = [
        node.name
        for node in model.graph.node
        if any(name.startswith(("model.counts.", "model.lexical.")) for name in node.input)
    ]
    # The quantizer first replaces each Gemm by a MatMul with this suffix in its name.
    excluded += [f"{name}_MatMul" for name in excluded]
    # Remove the mark that rows of a batch are independent: with int8, they share one scale of
    # activations.
    model.ClearField("metadata_props")
    with _quiet():
        quantize_dynamic(
            model,
            str(target),
            weight_type=QuantType.QInt8,
            per_channel=True,
            reduce_range=True,
            op_types_to_quantize=["MatMul", "Gemm", "Gather"],
            nodes_to_exclude=excluded,
        )


def export_fp16(model: RouterModel, features: int, path: Path) -> None:
    """Write the graph with its encoder in fp16; the model itself does not change.

    Only the encoder is in fp16, because 11 significant bits are too few for the thresholds of trees
    and for pooling, which sums the states of as many as 512 tokens.
    """
    halved = deepcopy(model)
    assert halved.encoder is not None  # noqa: S101 - only an arm that joined later lacks it
    halved.encoder.encoder.half()
    export_onnx(halved, features, path)


def use_tree_kernel(model: onnx.ModelProto) -> None:
    """Replace each forest operator by the runtime's `TreeEnsemble`, in place.

    Gather operators evaluate 200 trees in 3.6 ms, the kernel of `TreeEnsemble` in 0.1 ms. The
    kernel returns sums of leaf values. To get the leaf that each tree reaches instead, each tree
    has its own sum, and a leaf's value is an index, which is exact in FP32 up to 16 million. The
    index is that of a row in the table of values. Equal rows are stored once: the 68,135 leaves of
    the shipped demand forest have 271 different values.
    """
    domain, operator = FOREST_OPERATOR.split("::")
    tables = {each.name: each for each in model.graph.initializer}
    nodes = list(model.graph.node)
    forests = [node for node in nodes if node.op_type == operator]
    model.graph.ClearField("node")
    for node in nodes:
        if node not in forests:
            model.graph.node.append(node)
            continue
        features, *names = node.input
        output, (leaves,) = f"{node.name}_leaves", node.output
        trees = _tree_attributes(*(numpy_helper.to_array(tables[name]) for name in names))
        (lookup,) = [each for each in nodes if leaves in each.input]
        table = tables[lookup.input[0]]
        rows, row_of_leaf = np.unique(numpy_helper.to_array(table), axis=0, return_inverse=True)
        table.CopyFrom(numpy_helper.from_array(rows, table.name))
        for old in [each for each in model.graph.value_info if each.name == table.name]:
            model.graph.value_info.remove(old)
        weights = row_of_leaf.reshape(-1).astype(np.float32)
        ensemble = helper.make_node(
            "TreeEnsemble",
            [features],
            [output],
            f"{node.name}_trees",
            domain="ai.onnx.ml",
            leaf_weights=numpy_helper.from_array(weights),
            **trees,
        )
        cast_name = f"{node.name}_cast"
        cast = helper.make_node("Cast", [output], [leaves], cast_name, to=TensorProto.INT64)
        model.graph.node.extend([ensemble, cast])
    read = {name for node in model.graph.node for name in node.input}
    for name in {name for forest in forests for name in forest.input} & tables.keys() - read:
        model.graph.initializer.remove(tables[name])
    kept = [each for each in model.opset_import if each.domain != domain]
    model.ClearField("opset_import")
    model.opset_import.extend([*kept, helper.make_opsetid("ai.onnx.ml", ML_OPSET)])


def _tree_attributes(
    roots: Indices,
    feature: Indices,
    threshold: NDArray[np.float32],
    left: Indices,
    right: Indices,
    tree: Indices,
) -> dict[str, Any]:
    """Return the attributes of `TreeEnsemble` for a forest's nodes, except the leaves' weights.

    Leaves come first.
    """
    leaves = len(tree)
    # The operator needs a split in every tree. A tree that is a single leaf therefore gets a split
    # whose two sides lead to that leaf.
    single = np.flatnonzero(roots < leaves)
    blank = np.zeros(len(single))
    yes, no = (np.concatenate([side[leaves:], roots[single]]) for side in (left, right))
    starts = roots - leaves
    starts[single] = len(left) - leaves + np.arange(len(single))
    splits = np.concatenate([threshold[leaves:], blank]).astype(np.float32)
    modes = np.full(len(splits), GO_LEFT_IF_NOT_ABOVE, dtype=np.uint8)
    return {
        "aggregate_function": SUM,
        "n_targets": len(roots),
        "tree_roots": starts,
        "nodes_featureids": np.concatenate([feature[leaves:], blank]).astype(np.int64),
        "nodes_splits": numpy_helper.from_array(splits),
        "nodes_modes": numpy_helper.from_array(modes),
        "nodes_truenodeids": np.where(yes < leaves, yes, yes - leaves),
        "nodes_trueleafs": (yes < leaves).astype(np.int64),
        "nodes_falsenodeids": np.where(no < leaves, no, no - leaves),
        "nodes_falseleafs": (no < leaves).astype(np.int64),
        "leaf_targetids": tree,
    }


@contextmanager
def _quiet() -> Iterator[None]:
    """Hide progress messages and warnings of the exporter and the quantizer."""
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(logging.NOTSET)


GRAPH = "model.int8.onnx"
CUDA_GRAPH = "model.fp16.onnx"
GRAPHS: Mapping[str, str] = {"cpu": GRAPH, "cuda": CUDA_GRAPH}
"""The graph for each device; an artifact may lack the one for GPUs."""
CANARY_REQUESTS = Path(__file__).with_name("canaries.jsonl")


def exported_graphs(directory: Path) -> dict[str, str]:
    """Return the graphs that were exported to a directory, by their device."""
    return {device: name for device, name in GRAPHS.items() if (directory / name).exists()}


def write_canaries(directory: Path, config: RunConfig, calibration: Calibration = IDENTITY) -> None:
    """Write the canary requests with the exported graphs' calibrated probabilities."""
    packer = Packer(config.packing, Tokenizer.from_file(str(directory / TOKENIZER)))
    requests = [json.loads(line) for line in CANARY_REQUESTS.read_text().splitlines()]
    models = exported_graphs(directory)
    record_canaries(directory, models, config.arms, requests, packer, calibration)


def record_canaries(
    directory: Path,
    models: Mapping[str, str],
    arms: Sequence[str],
    requests: Sequence[Json],
    packer: Packer,
    calibration: Calibration,
) -> None:
    """Write requests with the probabilities that each graph of `models` predicts for them.

    All graphs run on the CPU, which computes most operators of an fp16 graph in FP32 and rounds
    between them. On a GPU, probabilities therefore differ a little, but by far less than the
    tolerance: for a DistilBERT with sharp probabilities, by 0.004 (`CanaryRequest`).
    """
    packed = [packer.pack(parse_conversation(request)) for request in requests]
    predicted = {
        device: [
            dict(zip(arms, row, strict=True))
            for row in Classifier(directory / name, arms=len(arms), calibration=calibration)
            .predict(packed)
            .tolist()
        ]
        for device, name in models.items()
    }
    for_cpu = predicted.pop("cpu")
    lines = []
    for number, request in enumerate(requests):
        line: dict[str, Json] = {"request": request, "probabilities": for_cpu[number]}
        if predicted:
            line["by_device"] = {device: rows[number] for device, rows in predicted.items()}
        lines.append(json.dumps(line))
    (directory / CANARIES).write_text("\n".join(lines) + "\n")


def write_manifest(  # noqa: PLR0913
    directory: Path,
    config: RunConfig,
    encoder: Encoder,
    profile: Mapping[str, ArmProfile],
    provenance: Provenance,
    *,
    figures: Figures,
    calibration: Calibration,
    familiarity: FamiliaritySpec | None = None,
) -> Manifest:
    """Return the manifest after writing it, which completes the artifact directory."""
    goals = {
        name: text
        for name, text in config.policies.items()
        if parse_goal(text, param=name) is not None
    }
    manifest = Manifest(
        schema_version=SCHEMA_VERSION,
        name=config.name,
        arms=config.arms,
        stands_for={each.arm: each.stands_for for each in config.pool if each.stands_for},
        knowledge=config.knowledge,
        encoder=encoder,
        packing=config.packing,
        policies=figures.policies,
        policy_goals=goals,
        profile=profile,
        calibration=calibration,
        frontier=figures.frontier,
        metrics=figures.metrics,
        familiarity=familiarity,
        provenance=provenance,
        models=exported_graphs(directory),
        files=file_hashes(directory),
    )
    return save_manifest(directory, manifest)
