"""EnsembleSection: `ensemble:` of a job file.

ensemble:
  members: 5
  vary: [seed, rows, params]
  from: runs/mine_study
  best: 5
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, ClassVar, Literal

from pydantic import AfterValidator, BeforeValidator, ConfigDict, Field, ValidationInfo, field_validator
from pydantic.dataclasses import dataclass

from hpc_train.config.types import STRICT, Count, as_tuple

MOST_MEMBERS = 1_000
LATE = 4
"""The members whose weights are averaged are of the last one of so many parts of a run, where nobody says otherwise."""
MEAN, SPREAD, MEMBERS = OUTPUTS = ("mean", "spread", "members")
"""What the model of an ensemble gives, in place of one output."""
Varied = Literal["seed", "rows", "params"]


def _are_distinct(names: tuple[Varied, ...]) -> tuple[Varied, ...]:
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise ValueError(f"names {', '.join(twice)} more than once")
    return names


@dataclass(frozen=True, kw_only=True, config=ConfigDict(**STRICT, serialize_by_alias=True))
class EnsembleSection:
    """`ensemble:` of a job file: several models of one job, and one that gives the mean of what they give.

    Args:
        members: How many models are trained.
        study: The key `from`: the folder of a study, relative to the job file's.
        vary: In what they differ: the seeds of first weights and of the order of rows, the rows (each member's are
            drawn from all, with replacement), the parameters (those of the study's best trials).
        best: How many trials of the study give their parameters, the first members the best ones; None: one a member.
        checkpoint: Whether a member is the checkpoint with its best evaluation or its last one.
        seed: Of all that is drawn.
        combine: "mean": of models that were trained one by one. "snapshot": of the last checkpoints of one run, whose
            learning rate has come down at each (Huang et al., "Snapshot ensembles", ICLR 2017). "weights": one model
            whose weights are the mean of those of such checkpoints (Izmailov et al., "Averaging weights leads to wider
            optima and better generalization", UAI 2018).
        cycle: How many steps are between two members of one run; None: as many as `run.learning_rate_cycle`, or
            `train.max_steps` / members, of "weights" a quarter of that.
    """

    retired: ClassVar[Mapping[str, str]] = {
        "size": "`members` says how many models there are",
        "n_members": "`members` says how many models there are",
        "study": "the folder of the study is the value of `from`",
    }

    members: Annotated[Count, Field(ge=2, le=MOST_MEMBERS)]
    study: Annotated[str | None, Field(alias="from", min_length=1)] = None
    vary: Annotated[
        tuple[Varied, ...],
        BeforeValidator(as_tuple),
        Field(min_length=1, validate_default=True),
        AfterValidator(_are_distinct),
    ] = ("seed",)
    best: Count | None = None
    checkpoint: Literal["best", "last"] = "best"
    seed: Annotated[int, Field(ge=0, lt=2**63, strict=True)] = 0
    combine: Literal["mean", "snapshot", "weights"] = "mean"
    cycle: Count | None = None

    @field_validator("vary")
    @classmethod
    def _goes_with_a_study(cls, vary: tuple[Varied, ...], info: ValidationInfo) -> tuple[Varied, ...]:
        study = info.data.get("study", ...)
        if study is None and "params" in vary:
            raise ValueError("`params` are those of a study's best trials; give its folder as `from`")
        if study not in (None, ...) and "params" not in vary:
            raise ValueError("`from` gives parameters, which do not vary; give `vary: [params]`, or leave it out")
        return vary

    @field_validator("best")
    @classmethod
    def _goes_with_members(cls, best: int | None, info: ValidationInfo) -> int | None:
        if best is None or not {"members", "vary", "study"} <= info.data.keys():
            return best
        members = info.data["members"]
        if info.data["study"] is None:
            raise ValueError("says how many trials of a study are taken, and there is none; give its folder as `from`")
        if best > members:
            raise ValueError(f"{best} trials are more than the {members} members, each of which takes one")
        if best < members and info.data["vary"] == ("params",):
            raise ValueError(
                f"{best} trials for {members} members would give some of them twice the same model; let `seed` or "
                "`rows` vary, too"
            )
        return best

    @field_validator("combine")
    @classmethod
    def _goes_with_one_run(cls, combine: str, info: ValidationInfo) -> str:
        defaults = {"study": None, "vary": ("seed",), "best": None, "checkpoint": "best"}
        given = [key for key, value in defaults.items() if info.data.get(key, value) != value]
        if combine != "mean" and given:
            keys = ", ".join("from" if key == "study" else key for key in given)
            raise ValueError(f"`{combine}` is of checkpoints of one run; leave {keys} out")
        return combine

    @field_validator("cycle")
    @classmethod
    def _is_of_one_run(cls, cycle: int | None, info: ValidationInfo) -> int | None:
        if cycle is not None and info.data.get("combine") == "mean":
            raise ValueError("is for checkpoints of one run; give `combine: snapshot` or `weights`, too")
        return cycle

    def snapshots(self, max_steps: int, rate_cycle: int | None = None) -> list[int]:
        """The steps of the members of one run; ValueError where it is too short, or no whole number of cycles.

        Args:
            rate_cycle: `run.learning_rate_cycle`.
        """
        parts = self.members * (LATE if self.combine == "weights" else 1)
        given = self.cycle or rate_cycle
        cycle = given or max_steps // parts
        if rate_cycle and cycle % rate_cycle:
            raise ValueError(f"`cycle` is {cycle}; give a multiple of `run.learning_rate_cycle`, {rate_cycle}")
        if cycle * self.members > max_steps or not cycle or max_steps % cycle:
            every, least = (given, given * self.members) if given else (parts, parts)
            raise ValueError(f"`train.max_steps` is {max_steps}; give a multiple of {every}, {least} at least")
        return [max_steps - cycle * number for number in reversed(range(self.members))]

    @property
    def runs(self) -> int:
        """How many models are trained."""
        return self.members if self.combine == "mean" else 1

    @property
    def trials(self) -> int:
        """How many trials of the study give their parameters."""
        return self.best or self.members
