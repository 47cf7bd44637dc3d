"""Distillation: a student learns its teacher's states, once."""

from __future__ import annotations

from pathlib import Path

import torch

from router_service.predictor.words import Ids
from switchcraft_training.config import DistilledConfig, EncoderConfig
from switchcraft_training.models.distillation import distil
from switchcraft_training.models.encoders import PretrainedEncoder
from switchcraft_training.models.frozen import row_inputs
from switchcraft_training.models.model import EncoderBranch
from tests.training.models.cases import encoder, rows


def settings(epochs: int, **changes: object) -> EncoderConfig:
    """Return the settings of a student with half the width of its teacher."""
    size = {"hidden_size": 8, "intermediate_size": 32, "epochs": epochs, **changes}
    return EncoderConfig(distilled=DistilledConfig.model_validate(size), pooling="mean")


def ids(n: int, seed: int) -> list[Ids]:
    """Return rows of token ids."""
    return [row.token_ids for row in rows(n, seed).packed]


def pooled(which: PretrainedEncoder, asked: list[Ids]) -> torch.Tensor:
    """Return one state per row, (n, hidden)."""
    branch = EncoderBranch(which.model, 1, pooling="mean", dropout=0.0)
    return torch.cat(row_inputs(branch, "all", asked, None))


def unexplained(student: PretrainedEncoder, teacher: PretrainedEncoder) -> float:
    """Return the share of the teacher's states on new rows that no linear map predicts."""
    said, wanted = (pooled(each, ids(400, 9)) for each in (student, teacher))
    known = torch.cat([said, torch.ones(400, 1)], dim=1)
    left = wanted - known @ torch.linalg.lstsq(known, wanted).solution
    return float(left.var(0).sum() / wanted.var(0).sum())


def test_student_learns_the_states_of_its_teacher(tmp_path: Path) -> None:
    """A student explains more on new rows; its embeddings stay the teacher's components."""
    teacher, texts = encoder(layers=2, dropout=0.0), ids(300, 1)
    barely, taught = (
        distil(teacher, settings(epochs, learning_rate=rate), texts, tmp_path)
        for epochs, rate in ((1, 1e-9), (12, 1e-2))
    )
    assert unexplained(taught, teacher) < 0.8 * unexplained(barely, teacher)
    words = "embeddings.word_embeddings.weight"
    one, other = (each.model.state_dict()[words] for each in (barely, taught))
    assert torch.equal(one, other)
    assert taught.model.config.hidden_size == 8
    assert (taught.name, taught.tokenizer) == (teacher.name, teacher.tokenizer)


def test_student_is_trained_once(tmp_path: Path) -> None:
    """Equal inputs reuse the student in the workspace; other rows make another student."""
    first = distil(encoder(), settings(1), ids(40, 1), tmp_path)
    (kept,) = (tmp_path / "distilled").iterdir()
    written = kept.stat().st_mtime_ns
    again = distil(encoder(), settings(1), ids(40, 1), tmp_path)
    assert kept.stat().st_mtime_ns == written
    weights = first.model.state_dict()
    assert all(
        torch.equal(weights[name], value) for name, value in again.model.state_dict().items()
    )
    assert all(parameter.requires_grad for parameter in again.model.parameters())
    distil(encoder(), settings(1), ids(40, 2), tmp_path)
    assert len(list((tmp_path / "distilled").iterdir())) == 2
