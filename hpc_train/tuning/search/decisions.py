"""What a study keeps: its decisions, one JSON object each. What trials measure is in their job-dirs. Pure."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, TypeAdapter
from pydantic.dataclasses import dataclass as checked

from hpc_train.config.tune.section import MOST_TRIALS
from hpc_train.telemetry.status import LONGEST_TIME

_IGNORING = ConfigDict(extra="ignore")  # another version may have more
LONGEST_TEXT = 2_000

Number = Annotated[int, Field(ge=0, lt=MOST_TRIALS)]
Step = Annotated[int, Field(ge=0, lt=1 << 53)]
Time = Annotated[float, Field(ge=0, lt=LONGEST_TIME)]
Text = Annotated[str, Field(max_length=LONGEST_TEXT)]
DriverName = Annotated[str, Field(pattern="^[0-9a-f]{16}$")]
GoalValue = Annotated[float, Field(allow_inf_nan=False)] | None
Verdict = Literal["promoted", "paused", "stopped"]
LeftState = Literal["waiting", "paused", "stopped", "completed", "failed"]


@checked(frozen=True, kw_only=True, config=_IGNORING)
class Lineage:
    """Where a fork goes on from, in a population.

    Attributes:
        parent: The trial whose checkpoint of `step` it begins with.
        replaces: The trial in whose place it is.
    """

    parent: Number
    step: Step
    replaces: Number


@checked(frozen=True, kw_only=True, config=_IGNORING)
class Suggested:
    """A new trial, which `driver` is about to run.

    Attributes:
        point: The values of the space's keys.
        source: Who has chosen them: "first", the sampler, or "fork".
        lineage: Of a fork; None: it begins with step 0.
    """

    kind: Literal["suggested"] = "suggested"
    time: Time
    trial: Number
    driver: DriverName
    point: dict[str, Any]
    source: Text
    lineage: Lineage | None = None


@checked(frozen=True, kw_only=True, config=_IGNORING)
class Taken:
    """A trial goes on, which `driver` is about to run.

    Attributes:
        to_the_end: It is not compared with others any more.
    """

    kind: Literal["taken"] = "taken"
    time: Time
    trial: Number
    driver: DriverName
    why: Text
    to_the_end: bool = False


@checked(frozen=True, kw_only=True, config=_IGNORING)
class Judged:
    """A trial was compared with others at a rung.

    Attributes:
        rung: Counted from 0.
        step, value: Of the evaluation, and what was compared; None where there is none that is a number.
        parent: The trial of which a fork takes this one's place; None: none does.
    """

    kind: Literal["judged"] = "judged"
    time: Time
    trial: Number
    rung: Number
    step: Step
    value: GoalValue
    verdict: Verdict
    why: Text
    parent: Number | None = None


@checked(frozen=True, kw_only=True, config=_IGNORING)
class Left:
    """A trial is run by nobody now.

    Attributes:
        state: What it is from here on.
        step: Of its newest checkpoint.
        value: The best of the goal so far.
        driver: Who has run it.
        crashed: Whether it has ended by itself, before it should.
    """

    kind: Literal["left"] = "left"
    time: Time
    trial: Number
    driver: DriverName
    state: LeftState
    step: Step
    value: GoalValue
    why: Text
    crashed: bool = False


@checked(frozen=True, kw_only=True, config=_IGNORING)
class Changed:
    """Somebody has asked for another number of trials, or of hours."""

    kind: Literal["changed"] = "changed"
    time: Time
    max_trials: Annotated[int, Field(gt=0, le=MOST_TRIALS)] | None = None
    max_hours: Annotated[float, Field(gt=0)] | None = None


@checked(frozen=True, kw_only=True, config=_IGNORING)
class Halted:
    """Somebody has asked all drivers to stop, or (`halted` is false) that they may go on."""

    kind: Literal["halted"] = "halted"
    time: Time
    halted: bool
    why: Text = ""


Decision = Suggested | Taken | Judged | Left | Changed | Halted
_DECISION: TypeAdapter[Decision] = TypeAdapter(Annotated[Decision, Field(discriminator="kind")])


def decision_of(fields: Any) -> Decision:
    """The decision that `fields`, from JSON, are; ValueError where they are none."""
    return _DECISION.validate_python(fields)


def fields_of(decision: Decision) -> dict[str, Any]:
    """A decision, fit for JSON."""
    return asdict(decision)  # type: ignore[call-overload, no-any-return]
