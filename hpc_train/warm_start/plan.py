"""Which variable of a new model takes its first value from which one of an older model. Pure."""

from __future__ import annotations

import difflib
import re
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from hpc_train.config.warm_start import WarmStartSettings
from hpc_train.errors import UserError
from hpc_train.model.model_state import is_random_state
from hpc_train.warm_start.estimator_names import Layer, dense_pairs

_COUNTED = re.compile(r"(.+)_([1-9]\d*)")
_SHOWN = 8

Parts = tuple[str, ...]


@dataclass(frozen=True)
class VariableType:
    """A variable's shape and the name of its dtype."""

    shape: tuple[int, ...]
    dtype: str

    def __str__(self) -> str:
        return f"{self.dtype} {list(self.shape)}"

    @property
    def floating(self) -> bool:
        """Whether its elements are floating-point numbers of any kind."""
        return "float" in self.dtype


@dataclass(frozen=True)
class Plan:
    """What becomes of every variable.

    Attributes:
        taken: Of the variables that get a value, the name there by the name here.
        skipped: Variables that are not wanted, and random states.
        missing: Wanted ones that are not there; they keep their initial values.
        unused: Those there that no variable takes.
    """

    taken: dict[str, str]
    skipped: tuple[str, ...]
    missing: tuple[str, ...]
    unused: tuple[str, ...]


def plan(
    here: Mapping[str, VariableType],
    there: Mapping[str, VariableType],
    settings: WarmStartSettings,
    numbered: Collection[str] = (),
    dense: Sequence[Layer] = (),
) -> Plan:
    """Pairs the variables `here` of the new model with those `there` by path, each in its model's order.

    A name in `var_name_to_prev_var_name` decides; else the path, in which the numbers that Keras gives the layers of a
    process (dense, dense_1, …) count by their order alone; else the end of the path, where one path ends with the
    other whole and no second one does. Variables of a part that is named are looked for below its name there alone.
    Where no name decides and none is alike, Dense layers are paired with those of a canned estimator by their order.

    Args:
        numbered: Names of layers to which Keras appends such numbers ("dense").
        dense: The new model's Dense layers.

    Raises:
        UserError: An expression matches no variable, a name is unknown, nothing could be taken, layers of a canned
            estimator are not those of the model, or shapes or types of variables to be taken do not go together (all
            of them are listed).
    """
    known_here, known_there = (
        {name: kind for name, kind in side.items() if not is_random_state(name, kind.shape, kind.dtype)}
        for side in (here, there)
    )
    wanted = _wanted(known_here, settings.vars_to_warm_start)
    _check_names(known_here, known_there, settings.var_name_to_prev_var_name, wanted)
    pairs = _by_names(list(known_here), list(known_there), settings.var_name_to_prev_var_name, numbered)
    pairs = pairs or dense_pairs(dense, known_there, settings.ckpt_to_initialize_from)
    taken = {name: pairs[name] for name in known_here if name in wanted and name in pairs}
    if not taken:
        raise UserError(
            f"warm start: {settings.ckpt_to_initialize_from} has none of the variables wanted: there are "
            f"{some(known_there)}, but wanted are {some(n for n in known_here if n in wanted)}; "
            "give var_name_to_prev_var_name"
        )
    _check_alike(known_here, known_there, taken, settings)
    used = set(taken.values())
    return Plan(
        taken,
        tuple(name for name in here if name not in wanted),
        tuple(name for name in known_here if name in wanted and name not in taken),
        tuple(name for name in known_there if name not in used),
    )


def some(names: Iterable[str], count: int = _SHOWN) -> str:
    """The first of `names`, and how many more there are."""
    listed = list(names)
    more = f" and {len(listed) - count:,} more" if len(listed) > count else ""
    return (", ".join(listed[:count]) or "none") + more


def _wanted(here: Iterable[str], patterns: tuple[str, ...]) -> set[str]:
    names, wanted = list(here), set()
    for pattern in patterns:
        found = {name for name in names if re.match(pattern, name)}
        if not found:
            raise UserError(
                f"vars_to_warm_start: {pattern!r} matches no variable of the model from its beginning; it has "
                f"{some(names)}"
            )
        wanted |= found
    return wanted


def _check_names(here: Iterable[str], there: Iterable[str], names: Mapping[str, str], wanted: set[str]) -> None:
    problems = []
    for ours, theirs in names.items():
        for name, known, where in ((ours, here, "the model"), (theirs, there, "what it starts from")):
            if not _is_known(name, known):
                parts = [n.rpartition("/")[0] + "/" for n in known if "/" in n]
                choices = parts if name.endswith("/") else list(known)
                near = difflib.get_close_matches(name, choices, n=1)
                hint = f"did you mean {near[0]}?" if near else f"there are {some(dict.fromkeys(choices))}"
                problems.append(f"var_name_to_prev_var_name: {where} has no variable {name}; {hint}")
        if ours in set(here) - wanted:
            problems.append(f"var_name_to_prev_var_name: vars_to_warm_start leaves {ours} out, so name it there")
    if problems:
        raise UserError("\n".join(problems))


def _is_known(name: str, known: Iterable[str]) -> bool:
    if not name.endswith("/"):
        return name in set(known)
    return name == "/" or any(other.startswith(name) for other in known)


def _by_names(here: list[str], there: list[str], names: Mapping[str, str], numbered: Collection[str]) -> dict[str, str]:
    """Names there by names here: of the parts that the user names, of the rest, and of named variables."""
    pairs: dict[str, str] = {}
    rest = list(here)
    for ours, theirs in sorted(names.items(), key=lambda pair: -len(pair[0])):  # a part of a part before the whole
        if ours.endswith("/"):
            part, other = _below(rest, ours), _below(there, theirs)
            found = matched(list(part), list(other), numbered)
            pairs |= {part[name]: other[found[name]] for name in found}
            rest = [name for name in rest if not name.startswith("" if ours == "/" else ours)]
    used = set(pairs.values())
    pairs |= matched(rest, [name for name in there if name not in used], numbered)
    return pairs | {ours: theirs for ours, theirs in names.items() if not ours.endswith("/")}


def _below(names: Iterable[str], above: str) -> dict[str, str]:
    """The names that begin with `above`, by what follows it."""
    above = "" if above == "/" else above
    return {name[len(above) :]: name for name in names if name.startswith(above)}


def matched(here: list[str], there: list[str], numbered: Collection[str]) -> dict[str, str]:
    """Names there by names here, where the paths show it; see `plan`."""
    ours, theirs = _canonical(here, there, numbered)
    by_path = {path: name for name, path in theirs.items()}
    pairs = {name: by_path[path] for name, path in ours.items() if path in by_path}
    used = set(pairs.values())
    rest = {name: path for name, path in ours.items() if name not in pairs}
    return pairs | _ending_alike(rest, {name: path for name, path in theirs.items() if name not in used})


def _canonical(
    here: list[str], there: list[str], numbered: Collection[str]
) -> tuple[dict[str, Parts], dict[str, Parts]]:
    """Paths without Keras's numbers, which count on in a process; they are kept where that is unclear."""
    counts: tuple[dict[str, set[int]], dict[str, set[int]]] = (defaultdict(set), defaultdict(set))
    for found, names in zip(counts, (here, there), strict=True):
        for name in names:
            for part in name.split("/")[:-1]:
                base, count = _counted(part)
                if base in numbered:
                    found[base].add(count)

    def path_of(name: str, own: dict[str, set[int]], other: dict[str, set[int]], side: str) -> Parts:
        *layers, last = name.split("/")
        parts = []
        for part in layers:
            base, count = _counted(part)
            if base in numbered and own[base] != other[base]:
                if len(own[base]) == len(other[base]):
                    part = f"{base}#{sorted(own[base]).index(count)}"
                elif min(own[base]) != min(other[base], default=None):
                    part = f"{part}#{side}"  # some layers more and another beginning: which is which cannot be known
            parts.append(part)
        return (*parts, last)

    ours = {name: path_of(name, counts[0], counts[1], "here") for name in here}
    return ours, {name: path_of(name, counts[1], counts[0], "there") for name in there}


def _counted(part: str) -> tuple[str, int]:
    match = _COUNTED.fullmatch(part)
    return (match[1], int(match[2])) if match else (part, 0)


def _ending_alike(here: dict[str, Parts], there: dict[str, Parts]) -> dict[str, str]:
    """Pairs of which one path is the end of the other: a part of a model is called without the model's name.

    At least two parts long, and only where no other variable on either side would do.
    """
    pairs = set()
    for ours, theirs, turned in ((here, there, False), (there, here, True)):
        whole = defaultdict(list)
        for name, path in ours.items():
            whole[path].append(name)
        for other, path in theirs.items():
            for start in range(len(path) - 1):
                for name in whole.get(path[start:], ()):
                    pairs.add((other, name) if turned else (name, other))
    of_ours, of_theirs = Counter(name for name, _ in pairs), Counter(name for _, name in pairs)
    return {name: other for name, other in pairs if of_ours[name] == 1 and of_theirs[other] == 1}


def _check_alike(
    here: Mapping[str, VariableType],
    there: Mapping[str, VariableType],
    taken: dict[str, str],
    settings: WarmStartSettings,
) -> None:
    differing = []
    for name, other in taken.items():
        ours, theirs = here[name], there[other]
        if ours.shape != theirs.shape or (ours.dtype != theirs.dtype and not (ours.floating and theirs.floating)):
            differing.append(f"  {name} is {ours} here, but {other} is {theirs} there")
    if differing:
        example = differing[0].split()[0]
        listed = "\n".join(differing)
        raise UserError(
            f"warm start: {len(differing)} of {len(taken)} variables differ from those of "
            f"{settings.ckpt_to_initialize_from}:\n{listed}\nleave them out by vars_to_warm_start (for all but the "
            f"first: '(?!{re.escape(example)})'), or name others in var_name_to_prev_var_name"
        )
